"""A reward that is a function from Python: of dialogues, or with the parameters of TRL's reward functions."""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rlhf_dialog.data.dialogue import POLICY, Dialogue
from rlhf_dialog.data.sources.record import NAMES
from rlhf_dialog.errors import UserError, nearest
from rlhf_dialog.rewards.base import BaseReward

TRL = ("prompts", "completions")
OURS = ("split", "index", "dialogue", "group", "unanswered")  # of `Dialogue.meta`, which are no columns of the data
# column -> of `Dialogue`
FIELDS = {**dict.fromkeys(NAMES["reference"], "reference"), "references": "references", "act": "act"}


_loops: list[tuple[threading.Thread, asyncio.AbstractEventLoop]] = []  # one, which a forked process does not have


class FunctionReward(BaseReward):
    """`function(dialogues)`, or `function(prompts, completions, **columns)` as in TRL; the names of its parameters tell which.

    In TRL's form, `prompts` and `completions` hold messages where the data says who speaks, else texts (with a line for each
    turn), and every column of the data is a list. `columns` are those of `env.args`, whose names in the data the function uses,
    `arguments` its keyword arguments in every call. An `async def` is awaited. `file` is where a YAML found the function.
    Raises UserError for a function with other parameters.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        columns: Mapping[Any, str] | None = None,
        arguments: Mapping[str, Any] = MappingProxyType({}),
        file: Path | None = None,
    ):
        if not callable(function) or isinstance(function, type | BaseReward):
            wanted = "wanted a function; register a class, and name it in reward_class"
            raise UserError(f"reward: found {function!r:.80}, {wanted}")
        self.function, self.function_name = function, function_name(function)
        self.arguments, self.file = arguments, file
        self.is_async = is_async(function)
        signature = inspect.signature(function)
        parameters = signature.parameters.values()
        named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        self.takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self.is_trl = any(p.name in TRL for p in named) or (self.takes_all and not named)
        self.wanted = [p.name for p in named if p.name not in (*TRL, *arguments)]
        self.required = [p.name for p in named if p.default is p.empty and p.name in self.wanted]
        self.use_columns(columns or {})
        if not self.is_trl and (len(self.required) > 1 or not parameters):
            wanted = "wanted f(dialogues), or as in TRL f(prompts, completions, **columns)"
            raise UserError(f"reward: found {self.function_name}{signature}, {wanted}")
        data = [p.name for p in named if p.name in TRL] if self.is_trl else []
        try:
            signature.bind_partial(*([] if self.is_trl else [None]), **arguments)
            wrong = [f"'{name}' is filled from the data" for name in data if name in arguments]
        except TypeError as error:
            unknown = [str(key) for key in arguments if key not in signature.parameters]
            wrong = [f"{error}{nearest(unknown[0], signature.parameters) if unknown else ''}"]
        if wrong:
            raise UserError(f"reward: wrong arguments: {wrong[0]}. It is {self.function_name}{signature}.")

    def use_columns(self, columns: Mapping[Any, str]) -> None:
        """Take the columns of `env.args`."""
        self.fields = FIELDS | {name: kind for kind, name in columns.items() if kind in FIELDS.values()}

    @property
    def name(self) -> str:
        return self.function_name

    def __call__(self, dialogues: list[Dialogue]) -> Any:
        """What the function returns. Of TRL's columns, those without a value that nobody asks for are left out."""
        found = self._call(dialogues)
        return begin_awaiting(found).result() if inspect.isawaitable(found) else found

    def begin(self, dialogues: list[Dialogue]) -> Future[Any]:
        """Start an `async def`; the result holds what it returns."""
        return begin_awaiting(self._call(dialogues))

    def _call(self, dialogues: list[Dialogue]) -> Any:
        if not self.is_trl:
            return self.function(dialogues, **self.arguments)
        pairs = [_as_trl(dialogue) for dialogue in dialogues]
        known = _columns(dialogues)
        cells = {
            name: [self._cell(dialogue, name) for dialogue in dialogues]
            for name in (dict.fromkeys([*known, *self.fields]) if self.takes_all else self.wanted)
            if name not in self.arguments
        }
        columns = {
            name: values
            for name, values in cells.items()
            if name in self.required or name in known or any(value is not None for value in values)
        }
        given = {"prompts": [prompt for prompt, _ in pairs], "completions": [reply for _, reply in pairs]} | columns
        names = inspect.signature(self.function).parameters
        chosen = given if self.takes_all else {name: given[name] for name in names if name in given}
        return self.function(**chosen, **self.arguments)

    def check_prompts(self, prompts: Sequence[Dialogue], where: str = "") -> None:
        """Raises UserError where the function has a parameter that is no column of the data."""
        for name in self.required if self.is_trl else ():
            if all(self._cell(prompt, name) is None for prompt in prompts):
                columns = ", ".join(_columns(prompts)) or "none besides the prompt"
                what = f"its parameter '{name}' is no column of the {len(prompts)} prompts{where}"
                raise UserError(f"reward {self.name}: {what}; the columns are: {columns}")

    def _cell(self, dialogue: Dialogue, name: str) -> Any:
        if name in dialogue.meta or name not in self.fields:
            return dialogue.meta.get(name)
        return getattr(dialogue, self.fields[name]) or None


def begin_awaiting(awaitable: Awaitable[Any]) -> Future[Any]:
    """Start it in the event loop of all rewards, which stays, as do the connections that a reward keeps open in it."""
    if not (_loops and _loops[0][0].is_alive()):
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="rlhf_dialog rewards", daemon=True)
        thread.start()
        _loops[:] = [(thread, loop)]

    async def result() -> Any:
        return await awaitable

    return asyncio.run_coroutine_threadsafe(result(), _loops[0][1])


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it returns what is awaited."""
    kinds = (function, getattr(function, "__call__", None))  # noqa: B004 - of an object, its method
    return any(map(inspect.iscoroutinefunction, kinds))


def function_name(function: Callable[..., Any]) -> str:
    """The name of a function in logs and tables; of an object that can be called, that of its class."""
    return getattr(function, "__name__", type(function).__name__).strip("<>")


def _columns(dialogues: Sequence[Dialogue]) -> list[str]:
    return list(dict.fromkeys(name for dialogue in dialogues for name in dialogue.meta if name not in OURS))


def _as_trl(dialogue: Dialogue) -> tuple[Any, Any]:
    """The prompt, and what followed it, as TRL passes them to a reward function."""
    if dialogue.roles is None:
        return "\n".join(dialogue.prompt_turns), "\n".join(turn.text for turn in dialogue.turns)
    system = [] if dialogue.system is None else [{"role": "system", "content": dialogue.system}]
    before = zip(dialogue.roles, dialogue.prompt_turns, strict=True)
    after = [("assistant" if turn.speaker == POLICY else "user", turn.text) for turn in dialogue.turns]
    prompt, reply = ([{"role": role, "content": text} for role, text in turns] for turns in (before, after))
    return [*system, *prompt], reply
