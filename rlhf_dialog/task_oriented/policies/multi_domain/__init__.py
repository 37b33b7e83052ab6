"""Policies for several domains in one dialogue, and what decides of which of them is spoken.

- **A policy of one domain sees that domain alone** (`views`), so any policy can be a part.
- **Dialogues are split where they end**: the turns of each domain are a dialogue of their own, and the outcome of the whole is
  paid at the end of each. Pieces are held back until then, so that nothing is bootstrapped at a cut.
"""
