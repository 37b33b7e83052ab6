"""The weighted sum of several rewards, as the YAML lists them, the reward that is 0, and how a reward is built."""

from collections.abc import Mapping
from typing import Any

from rlhf_dialog.config.registry import COLON, RewardFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError, nearest
from rlhf_dialog.rewards.base import ARGS, BaseReward, Part, as_reward_error, free_name, is_finite, needs_device, walk
from rlhf_dialog.rewards.function_reward import FunctionReward
from rlhf_dialog.rewards.named_function import named_function
from rlhf_dialog.rewards.scoring import Scorer

PART_KEYS = ("id", "weight", "args")


@RewardFactory.register("NoReward")
class NoReward(BaseReward):
    """0 for each dialogue: what a run with an `environment` has by default, beside the rewards of the environment."""

    name = "no_reward"

    def __call__(self, dialogues: list[Dialogue]) -> list[float]:
        return [0.0] * len(dialogues)


@RewardFactory.register("CompositeReward")
class CompositeReward(BaseReward):
    """The weighted sum of several rewards, as the YAML lists them.

    >>> CompositeReward(parts=[{"id": "Meteor"}, {"id": "LengthMatch", "weight": 0.5, "args": {}}])

    A part of weight 0 is computed and logged, but does not count. Two parts of the same name become `x` and `x_2`.
    Raises UserError that names every faulty `reward_class.args.parts[i]`.
    """

    name = "composite"

    def __init__(self, parts: list[dict[str, Any]]):
        if not isinstance(parts, list) or not parts:
            raise UserError(f"{ARGS}.parts: give a list of one or more {{id, weight, args}}")
        problems = [f"{ARGS}.parts[{i}]: {text}" for i, part in enumerate(parts) for text in _problems(part)]
        if problems:
            raise UserError("\n".join(problems))
        self._set_parts([Part(float(part.get("weight", 1.0)), _build_part(i, part)) for i, part in enumerate(parts)])

    def _set_parts(self, parts: list[Part]) -> None:
        """Set rewards that are already built; a subclass calls this in place of `super().__init__`."""
        named: dict[str, Part] = {}
        for part in parts:
            named[free_name(part.reward.name, named)] = part
        self.weighted_parts = named
        self.needs = tuple(dict.fromkeys(need for part in parts for need in part.reward.needs))
        self.uses_device = any(needs_device(part.reward) for part in parts)

    def __call__(self, dialogues: list[Dialogue]) -> list[float]:
        """The weighted sum for each dialogue. Raises RewardError when a part raises or returns no usable numbers."""
        return Scorer(self).score(dialogues).total

    @classmethod
    def model_paths(cls, args: dict[str, Any]) -> dict[str, str]:
        """The models that the parts will load, at every depth; two models of the same name become `x` and `x_2`."""
        parts = args.get("parts")
        paths: dict[str, str] = {}
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, dict):
                for name, path in model_paths(str(part.get("id")), part.get("args") or {}).items():
                    paths[free_name(name, paths)] = path
        return paths


def build_reward(name: str, args: dict[str, Any], columns: Mapping[Any, str] | None = None) -> BaseReward:
    """The reward of `reward_class: {id: name, args: args}`; `columns` are those of `env.args`, for functions of the user's.

    Raises UserError for an unknown name or wrong arguments, RewardError when the class's own constructor raises.
    """
    reward = named_function(name, args) if COLON in name else _build_class(name, args)
    for one in walk(reward) if columns else ():
        if isinstance(one, FunctionReward):
            one.use_columns(columns or {})
    return reward


def _build_class(name: str, args: dict[str, Any]) -> BaseReward:
    if problem := RewardFactory.problem(name, args):
        raise UserError(problem)
    cls = RewardFactory.classes[name]
    with as_reward_error(name, cls):
        reward = cls(**args)
    if not isinstance(reward, BaseReward):
        raise UserError(f"reward '{name}': its class {cls.__name__} must be a subclass of BaseReward")
    return reward


def model_paths(name: str, args: Any) -> dict[str, str]:
    """The models that `reward_class: {id: name, args: args}` will load, see `BaseReward.model_paths`; nothing is built.

    Empty for an unknown name and for arguments that are not a mapping: building the reward reports what is wrong.
    """
    cls = RewardFactory.classes.get(name)
    if not (isinstance(cls, type) and issubclass(cls, BaseReward) and isinstance(args, dict)):
        return {}
    with as_reward_error(name, cls):
        return {str(key): str(path) for key, path in cls.model_paths(args).items() if path}


def _problems(part: Any) -> list[str]:
    """Everything that is wrong with one entry of `parts`; nothing is built."""
    if not isinstance(part, dict):
        return [f"{part!r} must be a mapping with id, weight, args"]
    problems = [f"unknown key '{key}'{nearest(str(key), PART_KEYS)}" for key in part if key not in PART_KEYS]
    if not is_finite(part.get("weight", 1.0)):
        problems.append(f"weight {part['weight']!r} must be a finite number")
    args = part.get("args") or {}
    if not isinstance(args, dict):
        problems.append(f"args {args!r} must be a mapping of the reward's arguments")
    elif "id" not in part:
        problems.append(f"id is missing; known rewards: {', '.join(sorted(RewardFactory.classes))}")
    elif COLON not in str(part["id"]) and (problem := RewardFactory.problem(str(part["id"]), args)):
        problems.append(problem)
    return problems


def _build_part(index: int, part: dict[str, Any]) -> BaseReward:
    place = f"{ARGS}.parts[{index}]"
    try:
        return build_reward(str(part["id"]), part.get("args") or {})
    except UserError as error:
        where = (f"{place}.args", ARGS) if ARGS in str(error) else (place,)
        raise error.with_location(*where) from error
