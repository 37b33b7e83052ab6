"""The start's own best replies by a run's reward, as data of supervised fine-tuning: a baseline that needs no PPO.

python -m experiments.smollm2 best_of --config ask_back.yaml --register examples/ask_back.py --output runs/ask_back_best
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

from experiments.smollm2.table import Table, TableOptions
from rlhf_dialog.atomic_files import replace_text
from rlhf_dialog.commands.command_line import check_seed
from rlhf_dialog.commands.options import REGISTER, Options, option, register, run_command
from rlhf_dialog.config.loading import find_config, load_config
from rlhf_dialog.data.dialogue import Dialogue


class BestOptions(Options):
    description = __doc__
    config: str = option("YAML of the run: its start, training prompts and reward")
    output: Path = option("folder to write: each prompt with its best reply, a tenth of them in validation.jsonl")
    prompts: int = option("number of training prompts, drawn with --seed (default: 320)", 320)
    draws: int = option("replies to each of them, at the run's temperature (default: 8)", 8)
    register: str | None = option(REGISTER)
    seed: int = option("seed of prompts and replies (default: 0)", 0)


def run(options: BestOptions) -> None:
    """Write the best replies."""
    check_seed(options.seed)
    import rlhf_dialog.runs.agent  # noqa: F401  the built-in rewards register themselves

    if options.register:
        register(options.register)
    config = load_config(find_config(options.config), {})
    options_of_table = TableOptions(
        config=options.config,
        encoder="",
        work=options.output,
        output=options.output,
        split="train",
        temperature=config.temperature,
        max_prompts=options.prompts,
        seed=options.seed,
    )  # type: ignore[call-arg]
    table = Table(options_of_table, config)
    best = table.best(options.draws).dialogues
    lines = [json.dumps(row_of(one), ensure_ascii=False) for one in best]
    held_out = len(lines) // 10
    for split, part in {"train": lines[held_out:], "validation": lines[:held_out]}.items():
        replace_text(options.output / f"{split}.jsonl", "\n".join(part) + "\n")


def row_of(dialogue: Dialogue) -> dict[str, Any]:
    """The prompt, its system message where it has one, and the reply as the reference."""
    system = {"system": dialogue.system} if dialogue.system else {}
    return {"prompt": dialogue.prompt_turns, **system, "reference": dialogue.response}


main = partial(run_command, BestOptions, run)
