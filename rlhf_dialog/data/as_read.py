"""A prompt as the model reads it: its text with special tokens, and what of its turns did not fit."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from rlhf_dialog.data.chat_template import TurnEncoder


@dataclass(frozen=True)
class AsRead:
    """`dropped`: the oldest turns, which were left out whole. `cut`: the beginning of the newest turn that was cut off."""

    text: str
    num_tokens: int
    dropped: tuple[str, ...] = ()
    cut: str = ""
    num_cut: int = 0  # tokens


def as_read(encoder: TurnEncoder, turns: Sequence[str]) -> AsRead:
    """The prompt of these turns, oldest first, as `encoder.encode_prompt` writes it."""
    ids, whole = encoder.encode_prompt(turns), _without_limit(encoder)
    kept = [start for start in range(len(turns)) if whole.encode_prompt(turns[start:]) == ids]
    text = _text(encoder, ids)
    if kept:
        return AsRead(text, len(ids), tuple(turns[: kept[-1]]))
    newest = whole.encode_prompt(turns[-1:])
    count = len(newest) - len(ids)
    head = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(newest, ids, strict=False)))
    return AsRead(text, len(ids), tuple(turns[:-1]), _text(encoder, newest[head : head + count]), count)


def _without_limit(encoder: TurnEncoder) -> TurnEncoder:
    whole = copy(encoder)
    whole.max_prompt_length = 2**31
    return whole


def _text(encoder: TurnEncoder, ids: Sequence[int]) -> str:
    tokenizer: Any = encoder.tokenizer
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
