"""Preference model: train a reward model on pairs of replies, and report what it is worth beside rules without a model."""

import json
import time

from transformers.utils import logging as transformers_logging

from rlhf_dialog.commands.command_line import new_folder, run_script, versions
from rlhf_dialog.commands.registering import register
from rlhf_dialog.evaluation.preferences import markdown
from rlhf_dialog.training.supervised.preference_model import PreferenceConfig, train


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    transformers_logging.disable_progress_bar()
    return run_script(run, PreferenceConfig, __doc__, argv)


def run(config: PreferenceConfig) -> None:
    """Train, measure, and write the output folder with report.json and report.md."""
    started = time.perf_counter()
    if config.register_file:
        register(config.register_file, "register_file:")
    with new_folder(config.output) as folder:
        report = train(config, folder, print)
        report["seconds"] = round(time.perf_counter() - started, 1)
        report["settings"] = config.model_dump()
        report["versions"] = versions("rlhf-dialog", "torch", "transformers", "trl", "tokenizers", "datasets")
        text = markdown(report)
        (folder / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        (folder / "report.md").write_text(text, encoding="utf-8")
    print(f"\n{text}\nwrote {config.output} in {time.perf_counter() - started:.0f} s")
