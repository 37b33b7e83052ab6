"""A finished model on the Hub: which of its files are published, its model card, and one commit that holds them all.

- **What is not named is not uploaded** (`files`): weights, tokenizer and settings by their names; never a pickle, code,
  config.yaml, evaluation.json or a link. `--dry_run` writes the same bytes that a push sends.
- **The card is written from the run** (`card`, `reward_card`): its config.yaml and evaluation.json are read as data, and
  nothing that they name is built. The intervals and the baselines are in the header (`model-index`) too, beside the
  agent's number.
- **Places stay here** (`privacy`): of a path only the last name is published, of a URL nothing. A file that holds a
  token is refused. Texts of the data are never in a card.
- **One commit, or none** (`repository`): the weights are uploaded first, and belong to nothing until the commit names
  them. After a kill or an error the repository is as it was, and the same command uploads only what is missing.
- **A repository that holds something else is not overwritten** without --overwrite. An earlier agent of the run of the
  same name (`rlhf_dialog_run` in the card's header) is followed by a new commit; the Hub keeps the old one.
"""
