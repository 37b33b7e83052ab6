"""Simulated users: who the policy talks with.

- **A user speaks acts** (`base.User`): it gets a goal and a stream of random numbers of its own, and answers the system's
  acts. Words, errors and beliefs lie between user and policy, and are not its business.
- **`AgendaUser` is PyDial's handcrafted user** in its behaviour and its parameters; docs/ENVIRONMENTS.md lists where it
  differs.
- **`CorpusUser` and `LMUser` talk in words only**, so they are whole environments: no acts, no tracker, no verdict lie between
  them and the policy. The first replays a dialogue of the data, the second is a language model with a goal of its own.
"""

from rlhf_dialog.environments.corpus import CorpusUser
from rlhf_dialog.task_oriented.world.users.agenda import AgendaUser
from rlhf_dialog.task_oriented.world.users.base import User
from rlhf_dialog.task_oriented.world.users.language_model import LMUser

__all__ = ["AgendaUser", "CorpusUser", "LMUser", "User"]
