"""Simulated users: who the policy talks with.

`AgendaUser` speaks acts (`base.User`), as PyDial's handcrafted user. `CorpusUser` and `LMUser` talk in words only, so they are
whole environments: no acts, no tracker and no verdict lie between them and the policy.
"""

from rlhf_dialog.environments.corpus import CorpusUser
from rlhf_dialog.task_oriented.world.users.agenda import AgendaUser
from rlhf_dialog.task_oriented.world.users.base import User
from rlhf_dialog.task_oriented.world.users.language_model import LMUser

__all__ = ["AgendaUser", "CorpusUser", "LMUser", "User"]
