"""What a reward is: a class that reads finished dialogues and returns one number each. Text only, no tensors."""

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.rewards.errors import named

Purpose = Literal["rollout", "validation", "evaluation"]
R = TypeVar("R", bound="BaseReward")


class BaseReward:
    """A reward on whole responses.

    Subclass it, register it under a name, and name it in the YAML; `args` there become the arguments of `__init__`.

    >>> @RewardFactory.register("Politeness")
    ... class Politeness(BaseReward):
    ...     def __init__(self, word: str = "please"):
    ...         self.word = word
    ...
    ...     def __call__(self, dialogues):
    ...         return [float(self.word in dialogue.response.lower()) for dialogue in dialogues]

    `__call__` is all that most rewards define. What a reward is made of (`children`, `frozen_models`, `model_paths`) and its
    life in a run (`begin_scoring`, `metrics`, `state_dict`, `load_state_dict`) are for those that hold models, other rewards, or
    numbers that change while the policy learns. A reward with `children` that overrides one of the latter four calls
    `super()` for them. docs/REWARDS.md shows an example of each.
    """

    needs: tuple[str, ...] = ()  # of "reference" and "act": what every prompt must carry; checked before training
    uses_device: bool = False  # True: it keeps the GPU or all cores busy, so it waits for the models that need them too
    lifts_kl: bool = (
        False  # True: `ref_model` and `kl_*` among its arguments in the YAML are the run's keys of those names
    )
    at_work: Callable[[], AbstractContextManager[Any]] = (
        nullcontext  # around each call: brings its models to the device
    )

    @property
    def name(self) -> str:
        """The name in logs and tables: `reward/<name>`."""
        return type(self).__name__.lower()

    @classmethod
    def reaches_out(cls, args: dict[str, Any]) -> dict[str, str]:
        """What of these arguments opens a connection, reads an environment variable or a pickle, or runs other code.

        `{"args.url": "sends every dialogue to a server"}`; empty for none. A configuration that was found beside an agent may
        build only a class that returns nothing here. It must define this itself: what it inherits is not about its own code.
        """
        return {"id": "is no built-in reward, and its code may do anything with its arguments"}

    def __call__(self, dialogues: list[Dialogue]) -> list[float]:
        """Return one finite number for each dialogue, in their order.

        In a rollout the list holds the dialogues of this process alone, in the order of its prompts, with the responses to one
        prompt side by side (`num_responses_per_prompt`); `meta["group"]` is the number of the prompt within the rollout,
        the same for all responses to it, and `meta["dialogue"]` that of the dialogue in the data. It is called once for
        each rollout, and a score that compares dialogues does so within a prompt: scores should not depend on how many
        processes there are. A validation passes the replies to its prompts on rank 0 alone, before training also two
        references. A part that leaves the device alone is called in a thread.
        """
        raise NotImplementedError(f"{type(self).__name__} must define __call__(self, dialogues) -> list[float]")

    def score_available(self, dialogues: list[Dialogue]) -> Sequence[float | None]:
        """As `__call__`, but with None for a dialogue without a score; asked under `on_reward_error: skip`.

        A reward that can fail for some dialogues and not for others (a server) overrides it; None and NaN from `__call__`
        count as no score anyway.
        """
        return self(dialogues)

    # -- what it is made of

    def weighted_parts(self) -> "dict[str, Part]":
        """The rewards that this one is the weighted sum of, by the names in logs and tables; none unless it is such a sum."""
        return {}

    def children(self) -> "list[BaseReward]":
        """The rewards inside of this one, of which it asks for scores; none by default, the parts of a weighted sum."""
        return [part.reward for part in self.weighted_parts().values()]

    def frozen_models(self) -> dict[str, Any]:
        """The models (`torch.nn.Module`) that this reward holds and does not train, by names for messages; not its children's.

        They are moved to the device, counted in the identity of the run, and kept as `intent_ds_config` says. The
        same objects at every call, and cheap: it is asked often.
        """
        return {}

    @classmethod
    def model_paths(cls, args: dict[str, Any]) -> dict[str, str]:
        """Folder or Hub name of each model that a reward with these arguments of the YAML will load, its parts' included.

        Asked before anything is loaded, for the memory forecast; `args` are not checked yet. The names are those of
        `frozen_models`.
        """
        return {}

    def to(self: R, device: str) -> R:
        """Move its models and those of its children to `device`."""
        for module in self.frozen_models().values():
            module.to(device)
        for child in self.children():
            child.to(device)
        return self

    # -- its life in a run

    def begin_scoring(self, purpose: Purpose, iteration: int) -> None:
        """Called in the main thread before each scoring, on all ranks for a rollout: what for, and the iteration, from 1.

        A validation follows the rollout of its `iteration` (0: the check before training). An evaluation (`scripts/evaluate.py`)
        knows no iteration: 0. By default it is passed on to the children.
        """
        for name, child in self._inside().items():
            with named(name, type(child)):
                child.begin_scoring(purpose, iteration)

    def metrics(self) -> dict[str, float]:
        """Numbers of this reward beside its scores, asked after each rollout on all ranks, logged as `reward/<name>/<key>`.

        With several processes the mean over their numbers, weighted by how many episodes each scored. By default those of the
        children, `<child's name>/<key>`.
        """
        found: dict[str, float] = {}
        for name, child in self._inside().items():
            with named(name, type(child)):
                found |= {f"{name}/{key}": value for key, value in child.metrics().items()}
        return found

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold for the reward to go on as if nothing had happened; JSON, with text as keys.

        Asked on rank 0, and loaded on all ranks: a state that decides on scores must come to the same on each of them. By
        default the states of the children, by their names.
        """
        found = {}
        for name, child in self._inside().items():
            with named(name, type(child)):
                if state := child.state_dict():
                    found[name] = state
        return found

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned; not called where a checkpoint has none."""
        for name, child in self._inside().items():
            if name in state:
                with named(name, type(child)):
                    child.load_state_dict(state[name])

    def _inside(self) -> "dict[str, BaseReward]":
        """The children by names that differ."""
        found = {name: part.reward for name, part in self.weighted_parts().items()}
        for child in self.children():
            if all(child is not other for other in found.values()):
                found[free_name(child.name, found)] = child
        return found


@dataclass
class Part:
    """A reward and its weight in the sum."""

    weight: float
    reward: BaseReward


def walk(reward: BaseReward) -> Iterator[BaseReward]:
    """The reward, its children, theirs and so on; each once."""
    seen: set[int] = set()
    todo = [reward]
    while todo:
        one = todo.pop()
        if id(one) not in seen:
            seen.add(id(one))
            yield one
            todo += one.children()[::-1]


def models_inside(reward: BaseReward) -> dict[str, tuple[BaseReward, Any]]:
    """The frozen models of a reward and of all rewards inside of it, each once, with the reward that holds it."""
    found: dict[str, tuple[BaseReward, Any]] = {}
    for one in walk(reward):
        for name, module in one.frozen_models().items():
            if all(module is not other for _, other in found.values()):
                found[free_name(name, found)] = one, module
    return found


def needs_device(reward: BaseReward) -> bool:
    """Whether it, or a reward inside of it, keeps the device busy: says so, or holds a model."""
    return any(one.uses_device or one.frozen_models() for one in walk(reward))


def free_name(name: str, taken: Container[str]) -> str:
    """`name`, or `name_2`, `name_3` ... where it is taken."""
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    return free
