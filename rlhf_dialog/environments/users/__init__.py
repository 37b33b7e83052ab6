"""Simulated users: who the policy talks with.

- **A user speaks acts** (`base.User`): it gets a goal and a stream of random numbers of its own, and answers the system's
  acts. Words, errors and beliefs lie between user and policy, and are not its business.
- **`AgendaUser` is PyDial's handcrafted user** in its behaviour and its parameters; docs/ENVIRONMENTS.md lists where it
  differs.
- **A person may be the user** (`human.HumanUser`): what is typed is what the policy reads, and its acts are read from it.
"""

from rlhf_dialog.environments.users.agenda import AgendaUser
from rlhf_dialog.environments.users.base import User

__all__ = ["AgendaUser", "User"]
