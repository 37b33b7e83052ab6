"""The command of a supervised stage: its settings, the folder that is written whole, the report, the closing lines."""

import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from rlhf_dialog.commands.command_line import new_folder, run_script, versions
from rlhf_dialog.training.supervised.stage import SupervisedStage

Stage = type[SupervisedStage[Any]]


def command_of(
    stage: Stage, doc: str | None, before: Callable[[Any], None] = lambda config: None
) -> Callable[..., int]:
    """The command line of a stage, which returns the exit code; `before` is called with the settings."""

    def main(argv: list[str] | None = None) -> int:
        return run_script(partial(_run, stage, before), stage.schema, doc, argv)

    return main


def _run(stage: Stage, before: Callable[[Any], None], config: Any) -> None:
    started = time.perf_counter()
    before(config)
    with new_folder(config.output) as folder:
        training = stage(config, folder, print)
        report = training.train()
        report["seconds"] = round(time.perf_counter() - started, 1)
        if "config" not in report:
            report["settings"] = config.model_dump()
        report["versions"] = versions(*stage.packages)
        (folder / stage.report_file).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        if page := training.page(report):
            (folder / "report.md").write_text(page, encoding="utf-8")
            page = f"\n{page}\n"
    print(f"{page}wrote {config.output} in {time.perf_counter() - started:.0f} s")
