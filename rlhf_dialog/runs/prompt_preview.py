"""`--show_prompts N`: the first prompts of a run as its model reads them, without a model, a reward or a file."""

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

from rlhf_dialog.config.schema import Config
from rlhf_dialog.data.chat_template import ROLES, TurnEncoder, fix_date, keep_with_room, prompt_encoder
from rlhf_dialog.data.dialogue import Dialogue, tools_of
from rlhf_dialog.data.prompts import PromptSampler, count_shared
from rlhf_dialog.environments.base import open_episode
from rlhf_dialog.models.chat_agent import settle_separator
from rlhf_dialog.models.loading import read_tokenizer
from rlhf_dialog.runs.data_source import build_simulated, training_prompts
from rlhf_dialog.terminal import visible


@dataclass(frozen=True)
class AsRead:
    """`dropped`: the oldest turns, which were left out whole. `cut`: the beginning of the newest turn that was cut off."""

    text: str
    num_tokens: int
    dropped: tuple[str, ...] = ()
    cut: str = ""
    num_cut: int = 0  # tokens


def as_read(encoder: TurnEncoder, turns: Sequence[str], system: str | None = None) -> AsRead:
    """The prompt of these turns, oldest first, as `encoder.encode_prompt` writes it."""
    ids, whole = encoder.encode_prompt(turns, system), copy(encoder)
    whole.max_prompt_length = 2**31
    kept = [start for start in range(len(turns)) if whole.encode_prompt(turns[start:], system) == ids]
    text = _text(encoder, ids)
    if kept:
        return AsRead(text, len(ids), tuple(turns[: kept[-1]]))
    newest = whole.encode_prompt(turns[-1:], system)
    count = len(newest) - len(ids)
    head = count_shared(newest, ids)
    return AsRead(text, len(ids), tuple(turns[:-1]), _text(encoder, newest[head : head + count]), count)


def _text(encoder: TurnEncoder, ids: Sequence[int]) -> str:
    tokenizer: Any = encoder.tokenizer
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


MARGIN = "  | "  # before each line that others wrote


def shown_prompts(config: Config, count: int) -> Iterator[str]:
    """Lines that show the first `count` training prompts in the order of the run. Raises UserError as the run would."""
    path = config.env.args.tokenizer_path or config.model_path
    tokenizer = read_tokenizer(path, "env.args.tokenizer_path", config.trust_remote_code)
    fix_date(tokenizer, config.date_string)
    settle_separator(config)
    encoder = prompt_encoder(tokenizer, config.turn_separator, config.max_prompt_length, config.system_prompt)
    prompts, total = first_prompts(config, count, encoder)
    source = f"environment {config.environment.id}" if config.environment else _count(total, "training prompt")
    yield (
        f"{source}; the first {len(prompts)} that the run takes, each at most {config.max_prompt_length} tokens "
        f"(max_prompt_length) of at most {config.context_size} turns (context_size)"
    )
    for number, prompt in enumerate(prompts, 1):
        yield ""
        yield from _describe(f"prompt {number}", prompt, encoder)


def first_prompts(config: Config, count: int, encoder: TurnEncoder) -> tuple[list[Dialogue], int]:
    """The first `count` prompts, fewer where the data has fewer, and the number of all that were read."""
    if config.environment:
        source = build_simulated(config.environment, config.seed, "train")
        environment = source.environments[0]
        return [open_episode(environment, source.seed_of(number), source.limits) for number in range(count)], count
    prompts = keep_with_room(encoder, training_prompts(config))
    numbers = PromptSampler(len(prompts), config.seed).take(min(count, len(prompts)))
    return [prompts[number] for number in numbers], len(prompts)


def _describe(title: str, prompt: Dialogue, encoder: TurnEncoder) -> Iterator[str]:
    read = as_read(encoder, prompt.prompt_turns, prompt.system)
    yield f"{title}: {_count(read.num_tokens, 'token')}, {_cut_off(read)}"
    yield from _quote(read.text)
    shown = len(prompt.prompt_turns) - len(read.dropped)
    yield f"  roles: {', '.join(ROLES[turns_left % 2] for turns_left in range(shown, 0, -1))}"
    for source, text in (("of the row", prompt.system), ("system_prompt", encoder.system_prompt)):
        if text:
            yield f"  system message ({source}):"
            yield from _quote(text)
            break
    if tools := tools_of(prompt.system):
        yield f"  tools: {', '.join(str(tool.get('function', tool).get('name')) for tool in tools)}"
    for turn in read.dropped:
        yield "  dropped turn:"
        yield from _quote(turn)
    if read.num_cut:
        yield "  cut off:"
        yield from _quote(read.cut)
    references = prompt.references or ([prompt.reference] if prompt.reference else [])
    for reference in references:
        yield "  reference:"
        yield from _quote(reference)
    if not references:
        yield "  no reference"
    end = _text(encoder, encoder.encode_reply("a")[-encoder.count_end_ids("a") :]).strip()
    yield f"  learned: the assistant's reply and its end, {visible(end)}"


def _cut_off(read: AsRead) -> str:
    parts = [_count(len(read.dropped), "turn") + " dropped"] if read.dropped else []
    parts += [_count(read.num_cut, "token") + " of the newest turn cut off"] if read.num_cut else []
    return ", ".join(parts) or "nothing cut off"


def _count(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


def _quote(text: str) -> Iterator[str]:
    yield from (MARGIN + line for line in visible(text).split("\n"))
