"""`--show_prompts N`: the first prompts of a run as its model reads them, without a model, a reward or a file."""

from collections.abc import Iterator

from rlhf_dialog.config.schema import Config
from rlhf_dialog.data.as_read import AsRead, as_read
from rlhf_dialog.data.chat_template import TurnEncoder, prompt_encoder
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.prompts import PromptSampler, load_prompts
from rlhf_dialog.environments.base import open_episode
from rlhf_dialog.models.loading import read_tokenizer
from rlhf_dialog.runs.sources import simulated
from rlhf_dialog.terminal import visible

MARGIN = "  | "  # before each line that others wrote


def shown_prompts(config: Config, count: int) -> Iterator[str]:
    """Lines that show the first `count` training prompts in the order of the run. Raises UserError as the run would."""
    path = config.env.args.tokenizer_path or config.model_path
    tokenizer = read_tokenizer(path, "env.args.tokenizer_path", config.trust_remote_code)
    encoder = prompt_encoder(tokenizer, config.turn_separator, config.max_prompt_length, config.system_prompt)
    prompts, total = first_prompts(config, count)
    source = f"environment {config.environment.id}" if config.environment else _counted(total, "training prompt")
    yield (
        f"{source}; the first {len(prompts)} that the run takes, each at most {config.max_prompt_length} tokens "
        f"(max_prompt_length) of at most {config.context_size} turns (context_size)"
    )
    for number, prompt in enumerate(prompts, 1):
        yield ""
        yield from _described(f"prompt {number}", prompt, encoder)


def first_prompts(config: Config, count: int) -> tuple[list[Dialogue], int]:
    """The first `count` prompts, fewer where the data has fewer, and the number of all that were read."""
    if config.environment:
        source = simulated(config.environment, config.seed, "train")
        environment = source.environments[0]
        return [open_episode(environment, source.seed_of(number), source.limits) for number in range(count)], count
    prompts = load_prompts(
        config.env.args.data_path,
        "train",
        config.context_size,
        config.min_context_size,
        config.drop_overlap,
        config.turn_separator,
    )
    numbers = PromptSampler(len(prompts), config.seed).take(min(count, len(prompts)))
    return [prompts[number] for number in numbers], len(prompts)


def _described(title: str, prompt: Dialogue, encoder: TurnEncoder) -> Iterator[str]:
    read = as_read(encoder, prompt.prompt_turns)
    yield f"{title}: {_counted(read.num_tokens, 'token')}, {_cut_off(read)}"
    yield from _quoted(read.text)
    for turn in read.dropped:
        yield "  dropped turn:"
        yield from _quoted(turn)
    if read.num_cut:
        yield "  cut off:"
        yield from _quoted(read.cut)
    references = prompt.references or ([prompt.reference] if prompt.reference else [])
    for reference in references:
        yield "  reference:"
        yield from _quoted(reference)
    if not references:
        yield "  no reference"


def _cut_off(read: AsRead) -> str:
    parts = [_counted(len(read.dropped), "turn") + " dropped"] if read.dropped else []
    parts += [_counted(read.num_cut, "token") + " of the newest turn cut off"] if read.num_cut else []
    return ", ".join(parts) or "nothing cut off"


def _counted(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


def _quoted(text: str) -> Iterator[str]:
    yield from (MARGIN + line for line in visible(text).split("\n"))
