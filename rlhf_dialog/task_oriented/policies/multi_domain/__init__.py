"""Policies for several domains in one dialogue, and what decides of which of them is spoken.

- **A policy of one domain sees that domain alone** (`views`): its part of the observation, its own actions and the global ones,
  as if there were no other domain. So any policy can be a part, and one that was trained on a single domain fits.
- **Dialogues are split where they end**: the turns of each domain are a dialogue of their own, and the outcome of the whole is
  paid at the end of each. Pieces are held back until then, so that nothing is bootstrapped at a cut.
- **`manager` has a policy for each domain, `committee` has all members decide together** (Gasic et al. 2015): what one domain
  has taught counts in another through an abstraction of their slots (`abstraction`), a JSON file that a person can change.
- **`knowledge` is beside every task**: a lookup behind a policy. Only a `MediaWiki` that you make opens a connection.
"""
