"""The built-in environments register themselves where they are defined; an import of this module imports them all."""

from rlhf_dialog.environments.users.corpus import CorpusUser
from rlhf_dialog.environments.users.language_model import LMUser

__all__ = ["CorpusUser", "LMUser"]
