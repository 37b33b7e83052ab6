"""How an environment that a YAML names is built; your own ones register with `EnvironmentFactory` as the built-in ones do."""

from typing import Any

from rlhf_dialog.config.registry import EnvironmentFactory
from rlhf_dialog.environments import corpus  # noqa: F401  registers its class
from rlhf_dialog.environments.base import Environment
from rlhf_dialog.errors import UserError
from rlhf_dialog.user_code import as_user_error


def build_environment(name: str, args: dict[str, Any]) -> Environment:
    """The environment of `environment: {id: name, args: args}`.

    Raises UserError for an unknown name or wrong arguments, when its constructor raises, and when it lacks a method.
    """
    if problem := EnvironmentFactory.problem(name, args):
        raise UserError(f"environment: {problem}")
    with as_user_error(f"environment {name}: its constructor"):
        built: Environment = EnvironmentFactory.classes[name](**args)
    for method in ("reset", "step"):
        if not callable(getattr(built, method, None)):
            raise UserError(f"environment {name}: it has no method {method}; define reset(seed) and step(reply)")
    return built
