"""`--show_prompts N`: the first prompts of a run as its model reads them, without a model, a reward or a file."""

import logging
from collections.abc import Iterator
from copy import copy
from typing import Any, cast

from rlhf_dialog.config.schema import Config
from rlhf_dialog.data import row_counts
from rlhf_dialog.data.chat_template import TurnEncoder, fix_date, keep_with_room, prompt_encoder
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.prompt_ids import PromptSampler
from rlhf_dialog.environments.base import open_episode
from rlhf_dialog.models.chat_agent import settle_separator
from rlhf_dialog.models.loading import read_tokenizer
from rlhf_dialog.runs.data_source import build_simulated, training_prompts
from rlhf_dialog.terminal import visible

MARGIN = "  | "  # before each line that others wrote


def shown_prompts(config: Config, count: int) -> Iterator[str]:
    """Lines that show the first `count` training prompts in the order of the run. Raises UserError as the run would."""
    path = config.env.args.tokenizer_path or config.model_path
    tokenizer = read_tokenizer(path, "env.args.tokenizer_path", config.trust_remote_code)
    fix_date(tokenizer, config.date_string)
    config = settle_separator(config)
    encoder = prompt_encoder(tokenizer, config.turn_separator, config.max_prompt_length, config.system_prompt)
    row_counts.logger.setLevel(logging.DEBUG)  # names all columns that are in no prompt
    try:
        prompts = first_prompts(config, count, encoder)
    finally:
        row_counts.logger.setLevel(logging.NOTSET)
    for number, prompt in enumerate(prompts, 1):
        yield from _describe(number, prompt, encoder)


def first_prompts(config: Config, count: int, encoder: TurnEncoder) -> list[Dialogue]:
    """The first `count` prompts, fewer where the data has fewer."""
    if config.environment:
        source = build_simulated(config.environment, config.seed, "train")
        environment = source.environments[0]
        return [open_episode(environment, source.seed_of(number), source.limits) for number in range(count)]
    prompts = keep_with_room(encoder, training_prompts(config))
    return [prompts[number] for number in PromptSampler(len(prompts), config.seed).take(min(count, len(prompts)))]


def _describe(number: int, prompt: Dialogue, encoder: TurnEncoder) -> Iterator[str]:
    whole, tokenizer = copy(encoder), cast(Any, encoder.tokenizer)
    whole.max_prompt_length = 2**31
    ids, uncut = (one.encode_prompt(prompt.prompt_turns, prompt.system) for one in (encoder, whole))
    text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    yield f"prompt {number}: {len(ids)} tokens, {len(uncut) - len(ids)} cut off"
    yield from _quote(text)
    for reference in prompt.references or ([prompt.reference] if prompt.reference else []):
        yield "  reference:"
        yield from _quote(reference)


def _quote(text: str) -> Iterator[str]:
    yield from (MARGIN + line for line in visible(text).split("\n"))
