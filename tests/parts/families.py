"""Chat templates of known model families, as trl stores them, on a byte tokenizer with their special tokens."""

import re
from importlib.util import find_spec
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from tests.parts.tiny import byte_tokenizer

TEMPLATES = Path(str(find_spec("trl").origin)).parent / "chat_templates"
MARK = re.compile(r"<[|｜][^>\n'\" ]{1,40}[|｜]>|<(?:start|end)_of_turn>|<\|turn>|<turn\|>")


def family_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """256 byte tokens, the marks that the template writes, and the tags of thoughts, which are no special tokens."""
    return with_template((TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8"))


def with_template(template: str) -> PreTrainedTokenizerFast:
    tokenizer = byte_tokenizer(separator_token=False)
    tokenizer.add_special_tokens(
        {"bos_token": "<s>", "extra_special_tokens": sorted({"<|im_start|>", "<|im_end|>", *MARK.findall(template)})}
    )
    tokenizer.add_tokens(["<think>", "</think>"])
    tokenizer.chat_template, tokenizer.model_max_length = template, 10**6
    return tokenizer


def messages(*turns: str) -> list[dict[str, str]]:
    """Turns of user and assistant, the last of which is the user's."""
    roles = ("assistant", "user")
    return [{"role": roles[(len(turns) - i) % 2], "content": turn} for i, turn in enumerate(turns)]
