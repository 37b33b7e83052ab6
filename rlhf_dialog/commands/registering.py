"""`--register FILE`: rewards, metrics and networks of the user's own for the commands that train no policy."""

import runpy
import sys
from pathlib import Path

from rlhf_dialog.errors import UserError

REGISTER = "Python file that registers classes of your own (rewards, policies ...), run first; for example train_ppo.py"


def register(path: str, key: str = "--register") -> None:
    """Run a file of the user's for the classes that it registers. Raises UserError, which begins with `key`, when it fails."""
    if not Path(path).is_file():
        raise UserError(f"{key} {path}: is not a regular file; name a Python file that registers your classes")
    words, sys.argv = sys.argv, [path]
    try:
        runpy.run_path(path, run_name="registered")
    except (Exception, SystemExit) as error:
        raise UserError(f"{key} {path}: {type(error).__name__}: {error}") from error
    finally:
        sys.argv = words
