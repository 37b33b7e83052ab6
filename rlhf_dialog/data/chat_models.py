"""How a plain chat model speaks: its own template, and the sampling that its makers recommend."""

from pathlib import Path
from typing import Any

from rlhf_dialog.found_files import check_files
from rlhf_dialog.json_files import json_or

MAX_NEW_TOKENS, MAX_PROMPT_LENGTH, CONTEXT_SIZE = 512, 4096, 1000
CHAT_SAMPLING = {"chat_temperature": 0.7, "chat_top_p": 0.9}  # where the makers recommend none
POSITIONS = ("max_position_embeddings", "n_positions", "seq_length")


def chat_settings(folder: str | Path, tokenizer: str | Path | None = None) -> dict[str, Any]:
    """The settings of an agent for a chat model's folder that has none; empty where the tokenizer has no chat template,
    or an agent's, which holds them (`read_settings`).

    `tokenizer` is the folder of another tokenizer. Prompt and reply fit into the model's positions: a quarter of them, at
    most 512, is for the reply.

    >>> chat_settings("downloads/Qwen2.5-0.5B-Instruct")
    {'turn_separator': 'chat_template', 'context_size': 1000, 'max_new_tokens': 512, 'max_prompt_length': 4096, 'top_p': 0.8}
    """
    from rlhf_dialog.data.agent_template import stored_settings  # it loads transformers

    for place in (folder, folder if tokenizer is None else tokenizer):
        check_files(place)
    folder = Path(folder).expanduser()
    of_tokenizer = folder if tokenizer is None else Path(tokenizer).expanduser()
    has_template = any((of_tokenizer / name).is_file() for name in ("chat_template.jinja", "chat_template.json"))
    # what cannot be read is empty here: whoever loads the model says what is wrong
    has_template = has_template or bool(json_or(of_tokenizer / "tokenizer_config.json", {}, dict).get("chat_template"))
    if stored_settings(folder) or not has_template:
        return {}
    config, sampling = (json_or(folder / name, {}, dict) for name in ("config.json", "generation_config.json"))
    positions = next((found for name in POSITIONS if isinstance(found := config.get(name), int)), 10**9)
    reply = max(1, min(MAX_NEW_TOKENS, positions // 4))
    sizes = {"max_new_tokens": reply, "max_prompt_length": max(2, min(MAX_PROMPT_LENGTH, positions - reply))}
    return {"turn_separator": "chat_template", "context_size": CONTEXT_SIZE, **sizes, **_recommended_sampling(sampling)}


def _recommended_sampling(sampling: dict[str, Any]) -> dict[str, Any]:
    """Temperature, top_k and top_p of a generation_config.json that recommends sampling, as far as they can be.

    Without a recommendation, the sampling of chat and page alone.
    """
    if not sampling.get("do_sample"):
        return dict(CHAT_SAMPLING)
    possible = {
        "temperature": lambda x: x >= 1e-4,
        "top_k": lambda x: isinstance(x, int) and x >= 0,
        "top_p": lambda x: 0 < x <= 1,
    }
    given = {name: sampling[name] for name in possible if isinstance(sampling.get(name), int | float)}
    return {name: value for name, value in given.items() if possible[name](value)}
