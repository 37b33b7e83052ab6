"""A finished model on the Hub: which of its files are published, its model card, and one commit that holds them all.

- **What is not named is not uploaded** (`files`): never a pickle, code, config.yaml, evaluation.json or a link.
- **Places stay here** (`privacy`): of a path only the last name is published, of a URL nothing. A file that holds a
  token is refused. Texts of the data are never in a card.
- **One commit, or none** (`repository`): after a kill or an error the repository is as it was, and the same command
  uploads only what is missing. A repository that holds something else is not overwritten without --overwrite.
"""
