"""What is wrong with settings, in sentences: of pydantic's errors, the key, what was found and what is wanted."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from rlhf_dialog.config.synonyms import hint
from rlhf_dialog.errors import UserError, nearest

MEMBER = re.compile(r"constrained-int|literal\[.*\]")  # pydantic's names of the members of `int | "auto"`
SECRET = re.compile(r"(api|access|auth|hf|hub|wandb)_?(key|token)|secret|password|passwd|credential", re.IGNORECASE)


def listed(source: str, problems: Sequence[str]) -> UserError:
    """The error that names the source of the settings and lists every problem."""
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return UserError("\n  ".join([f"{source}: {count}", *problems]))


def sentences(schema: type[BaseModel], error: ValidationError) -> list[str]:
    """The errors of pydantic, one for each place, as `key: found X, wanted Y or Z`."""
    by_place: dict[tuple[str, ...], list[Any]] = {}  # several errors where a value fits no member of a union
    for item in error.errors():
        place = tuple(str(part) for part in item["loc"] if not MEMBER.fullmatch(str(part)))
        by_place.setdefault(place, []).append(item)
    return [_sentence(schema, place, items) for place, items in by_place.items()]


def _sentence(schema: type[BaseModel], place: tuple[str, ...], items: list[Any]) -> str:
    """The errors at one place as one sentence."""
    key, item = ".".join(part for part in place if part != "[key]"), items[0]
    if item["type"] == "extra_forbidden" and SECRET.search(key):
        return f"{key}: unknown key; set secrets in the environment (WANDB_API_KEY, HF_TOKEN), not in a configuration"
    if item["type"] == "extra_forbidden":
        return f"{key}: unknown key{_suggestion(schema, key)}"
    if item["type"] == "missing":
        meaning = next((field.description for name, field in walk(schema) if name == key), None) or "required"
        return f"{key}: missing; set it ({meaning})"
    message = " or ".join(_wanted(one["msg"]) for one in items)
    found = repr(item["input"])
    return f"{key}: found {found if len(found) <= 200 else f'{found[:200]} ...'}, wanted {message}" if key else message


def _wanted(message: str) -> str:
    """What pydantic's message asks for."""
    message = re.sub("^(Value error, |Input should be |Assertion failed, )", "", message)
    message = re.sub(", (unable to parse|got a number with) .*", "", message)
    return re.sub(r"a valid dictionary( or instance of \w+)?", "a mapping", message)


def _suggestion(schema: type[BaseModel], key: str) -> str:
    """The known key of that name at another level, else what it means in other libraries, else the nearest known key."""
    keys = [name for name, _ in walk(schema)]
    leaf = key.rsplit(".", 1)[-1]
    if same := [name for name in keys if name.rsplit(".", 1)[-1] == leaf]:
        return f"; did you mean '{same[0]}'?"
    return hint(leaf, keys) or nearest(key, keys) or nearest(leaf, keys)


def walk(schema: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every dotted key of a settings class with its pydantic field, in the order of definition."""
    for name, field in schema.model_fields.items():
        yield prefix + name, field
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from walk(inner, f"{prefix}{name}.")
