"""Dialogue environments: who talks with the policy, and what each of its replies is worth. Text only, no tensors.

- **Any class with `reset` and `step` is an environment**; there is no base class (`Environment` is a Protocol). Both
  return Gymnasium's tuples: `(text, info)` and `(text, reward, terminated, truncated, info)`. Gymnasium itself is
  imported by `text_level` alone (and by the worlds of acts), so that only those who use it need it.
- **What others have becomes an environment** (`adapters`), and any text environment a `gymnasium.Env` (`text_level`).
- **A YAML names environments as it names rewards** (`built_in`, `EnvironmentFactory`); users register their own ones.
- **A single-turn prompt is an environment too** (`SingleTurn`), so that the trainer has one way to collect a rollout.
- **Everything that an environment gets wrong is an error that names its class** (`opened`, `answer`): a wrong tuple, a
  reward that is not finite, an exception (with the line of the user's code), a call or a dialogue without an end.
- **Tokens are not here.** `training/episodes.py` plays many environments at once and turns their turns into tokens.
- **The reward of a step is paid on the last token of its reply**; the run's reward class scores the finished
  dialogue.
"""

from rlhf_dialog.environments.base import Environment
from rlhf_dialog.environments.single_turn import SingleTurn

__all__ = ["Environment", "SingleTurn"]
