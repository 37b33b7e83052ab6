"""Intent classifier: train an encoder to predict the act of a turn (inform, question, directive, commissive)."""

import json
import time

from transformers.utils import logging as transformers_logging

from rlhf_dialog.commands.command_line import new_folder, run_script, versions
from rlhf_dialog.training.supervised.intent_classifier import IntentConfig, markdown, splits, train


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    transformers_logging.disable_progress_bar()
    return run_script(run, IntentConfig, __doc__, argv)


def run(config: IntentConfig) -> None:
    """Train, measure, and write the output folder with report.json and report.md."""
    started = time.perf_counter()
    with new_folder(config.output) as folder:
        report = train(config, folder, print)
        report["seconds"] = round(time.perf_counter() - started, 1)
        report["settings"] = config.model_dump()
        report["versions"] = versions("rlhf-dialog", "torch", "transformers", "tokenizers", "datasets")
        text = "\n".join(markdown(split, report[split]) for split in splits(config))
        (folder / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        (folder / "report.md").write_text(text, encoding="utf-8")
    print(f"\n{text}\nwrote {config.output} in {time.perf_counter() - started:.0f} s")
