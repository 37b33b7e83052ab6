"""Supervised fine-tuning: train a causal LM, or a small GPT-2 from scratch, on the replies of the training dialogues."""

import json
import time

from transformers.utils import logging as transformers_logging

from rlhf_dialog.commands.command_line import new_folder, run_script, versions
from rlhf_dialog.training.supervised.sft import SFTConfig, train


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    transformers_logging.disable_progress_bar()
    return run_script(run, SFTConfig, __doc__, argv)


def run(config: SFTConfig) -> None:
    """Train, and write the output folder with training.json."""
    started = time.perf_counter()
    with new_folder(config.output) as folder:
        report = train(config, folder, print)
        report["seconds"] = round(time.perf_counter() - started, 1)
        report["versions"] = versions("rlhf-dialog", "torch", "transformers", "trl", "tokenizers", "datasets")
        (folder / "training.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"wrote {config.output} in {time.perf_counter() - started:.0f} s")
