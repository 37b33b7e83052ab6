"""`rlhf_dialog.chat.main`, the path that scripts import; the command is `commands.chat`."""

from rlhf_dialog.commands.chat import main

__all__ = ["main"]
