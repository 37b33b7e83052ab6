"""Dialogue policies at act level: from beliefs to summary actions.

- **A policy sees what a learner sees**: observations (N, D) and masks (N, A), never the belief behind them. The handcrafted
  policy reads the observation through `task_oriented.world.summary.Layout`, so that it can be imitated.
- **A policy is a class of six methods** (`base.Policy`), registered by name. Whoever learns off the policy keeps what
  `observe` gives it; the run asks for nothing but `act`, `observe`, `update`, `save` and `load`.
- **How dialogues are played** is in `sampling/`: a policy's files say what it chooses and how it learns, nothing else.
- **PPO is that of the language models** (`training/ppo.py`): an episode is a row, a turn is a token.
"""
