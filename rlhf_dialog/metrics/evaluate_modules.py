"""Modules of the `evaluate` library as metrics of replies: in a folder, or by a name of the Hub, whose Python is run."""

import logging
import math
from collections.abc import Sequence
from numbers import Real
from pathlib import Path
from typing import Any

from rlhf_dialog.config.registry import VecInfoFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.hub import is_local
from rlhf_dialog.errors import UserError
from rlhf_dialog.metrics.nlp import VecInfo
from rlhf_dialog.user_code import as_user_error

logger = logging.getLogger(__name__)


class EvaluateModule:
    """One module. `word` is NAME or FOLDER, with `:KEY` for one of its results; `place` named it.

    A name of the Hub needs `trusted`, because its code is downloaded and runs with all permissions of the user; a folder holds
    `<folder>.py`. Raises UserError for what is missing.
    """

    def __init__(self, word: str, trusted: bool, place: str):
        self.place = f"{place}: '{word}'"
        source, colon, key = word.rpartition(":")
        source, self.key = (source, key) if colon and not Path(word).expanduser().exists() else (word, "")
        path = Path(source).expanduser().absolute()
        self.name, self.source = path.name.removesuffix(".py"), source
        if is_local(source):
            script = path if path.suffix == ".py" else path / f"{path.name}.py"
            if not script.is_file():
                raise UserError(f"{self.place}: {script} is not there; name the folder of a module of `evaluate`")
            self.source = str(script)
        elif not trusted:
            what = "is a name of the Hub, whose Python would run with all your permissions"
            raise UserError(f"{self.place}: {what}; allow it with trust_remote_code, or name a folder")
        else:
            logger.warning("%s: Python from '%s' on the Hub may run with all your permissions", place, source)
        self.module: Any = None
        self.columns: list[str] = []
        self.scalars: set[str] = set()  # names of results that are one number for all replies
        self.names: list[str] = []  # of all results

    def load(self) -> None:
        """Run the module's Python. Raises UserError when it fails, or needs columns that replies have not."""
        import evaluate

        with as_user_error(self.place):
            self.module = evaluate.load(self.source, keep_in_memory=True)
            formats = self.module.features if isinstance(self.module.features, list) else [self.module.features]
        self.columns = list(formats[0])
        known = ("predictions", "data", "references", "sources")
        if unknown := [name for name in self.columns if name not in known]:
            raise UserError(f"{self.place}: needs the columns {', '.join(unknown)}; replies have {', '.join(known)}")
        of_references = [one["references"] for one in formats if "references" in one]
        self.takes_lists = any(type(one).__name__ != "Value" for one in of_references)

    def compute(self, dialogues: Sequence[Dialogue]) -> dict[str, list[float] | float]:
        """The results by `name`, or `name/key` of several: a number for each dialogue, or one for all.

        `predictions` and `data` are the replies, `sources` the last turns before them. Empty where the module reads references
        and a dialogue has none. Raises UserError when the module fails.
        """
        if self.module is None:
            self.load()
        if "references" in self.columns and any(one.reference is None for one in dialogues):
            return {}
        texts = [one.response for one in dialogues]
        references = [one.references or [one.reference or ""] for one in dialogues]
        given: dict[str, Any] = {
            "predictions": texts,
            "data": texts,
            "sources": [one.turns_before[-1] for one in dialogues],
        }
        given["references"] = references if self.takes_lists else [some[0] for some in references]
        with as_user_error(self.place):
            found = self.module.compute(**{name: given[name] for name in self.columns})
        numbers = {key: x for key, value in found.items() if (x := _numbers(value, len(texts))) is not None}
        if self.key and self.key not in numbers:
            raise UserError(f"{self.place}: has no number '{self.key}'; it has {', '.join(numbers) or 'none'}")
        chosen = {self.key: numbers[self.key]} if self.key else numbers
        is_single = len(chosen) == 1 and not self.key
        results = {self.name if is_single else f"{self.name}/{key}": value for key, value in chosen.items()}
        self.names = list(results)
        self.scalars = {name for name, value in results.items() if not isinstance(value, list)}
        return results


def _numbers(value: Any, count: int) -> list[float] | float | None:
    """A list of `count` numbers, or a number; None for everything else."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, Real):
        return float(value)
    is_column = isinstance(value, list | tuple) and len(value) == count and all(isinstance(one, Real) for one in value)
    return [float(one) for one in value] if is_column else None


@VecInfoFactory.register("EvaluateInfo")
class EvaluateInfo(VecInfo):
    """`metric/<name>` of modules of the `evaluate` library in training: of a number for each reply the mean.

    With several processes these are means over the processes, weighted by episodes. `modules` are as in `EvaluateModule`; names
    of the Hub need `trust_remote_code`.
    """

    def __init__(self, modules: list[str], trust_remote_code: bool = False):
        place = "vec_info_class.args.modules"
        if not isinstance(modules, list) or not modules or not all(isinstance(one, str) for one in modules):
            raise UserError(f"{place}: found {modules!r:.100}, wanted a list of names or folders")
        self.modules = [EvaluateModule(word, trust_remote_code is True, place) for word in modules]
        for module in self.modules:
            module.load()

    def __call__(self, rollout: Any) -> dict[str, float]:
        found = {name: value for one in self.modules for name, value in one.compute(rollout.dialogues).items()}
        means = {name: math.fsum(x) / len(x) if isinstance(x, list) else x for name, x in found.items()}
        return {f"metric/{name}": value for name, value in means.items()}
