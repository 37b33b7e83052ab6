"""A reward that the YAML names by where its function is: FILE.py:FUNCTION, or PACKAGE.MODULE:FUNCTION."""

import hashlib
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from rlhf_dialog.config.registry import COLON
from rlhf_dialog.errors import UserError, nearest
from rlhf_dialog.rewards.function_reward import FunctionReward
from rlhf_dialog.user_code import as_user_error


def named_function(name: str, arguments: Mapping[str, Any]) -> FunctionReward:
    """The reward of `reward_class: {id: name, args: arguments}`. The file, or the module, runs with all rights of the user.

    Raises UserError when it fails, has no such function, or has one that is no reward function.
    """
    place, _, function = name.rpartition(COLON)
    is_file = place.endswith(".py")
    if not (function.isidentifier() and (is_file or all(part.isidentifier() for part in place.split(".")))):
        raise UserError(f"reward '{name}': write FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION")
    module = _run_file(Path(place).expanduser(), name) if is_file else _import(place, name)
    if not hasattr(module, function):
        functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        known = f"{nearest(function, functions) or ';'} it has: {', '.join(functions) or 'none'}"
        raise UserError(f"reward '{name}': {place} has no function '{function}'{known}")
    file = getattr(module, "__file__", None)
    try:
        return FunctionReward(getattr(module, function), None, arguments, Path(file) if file else None)
    except UserError as error:
        raise error.with_location(f"reward '{name}'", "reward") from error


def _run_file(path: Path, name: str) -> ModuleType:
    """The file as a module, which runs once as long as its content stays, whoever names it."""
    if not path.is_file():
        where = f"looked for it in {Path.cwd()}"
        raise UserError(f"reward '{name}': {path} is not a regular file; {where}")
    content = path.read_bytes()
    digest = hashlib.sha256(bytes(path.resolve()) + content).hexdigest()[:16]
    title = f"reward_{path.stem}_{digest}"  # of two files of one name, each has its own
    if title in sys.modules:
        return sys.modules[title]
    module = sys.modules[title] = ModuleType(title)
    module.__file__ = str(path.resolve())
    try:
        with as_user_error(f"reward '{name}': the file"):
            exec(compile(content, module.__file__, "exec", dont_inherit=True), vars(module))
    except BaseException:
        del sys.modules[title]
        raise
    return module


def _import(module: str, name: str) -> ModuleType:
    try:
        with as_user_error(f"reward '{name}': the module"):
            return import_module(module)
    except UserError as error:
        if not isinstance(error.__cause__, ModuleNotFoundError):
            raise
        remedy = "install it, set PYTHONPATH, or name a file: path/to/FILE.py:FUNCTION"
        raise UserError(f"reward '{name}': {error.__cause__}; {remedy}") from error
