"""The command of a supervised stage: its settings, the folder that is written whole, the report, the closing lines."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_dialog.commands.command_line import new_folder, versions
from rlhf_dialog.commands.options import YamlOptions, run_command
from rlhf_dialog.data.hub import LOCAL_KEY, check_folder, local_names
from rlhf_dialog.data.sources import check_path
from rlhf_dialog.json_files import json_or
from rlhf_dialog.training.supervised.settings import SupervisedKeys
from rlhf_dialog.wings import load

if TYPE_CHECKING:
    from rlhf_dialog.training.supervised.stage import SupervisedStage

MODELS = ("model_path", "tokenizer_path", "sft_model")


def make_command(
    keys: type[SupervisedKeys],
    stage: str,
    doc: str | None,
    before: Callable[[Any], None] = lambda config: None,
) -> Callable[..., int]:
    """The command line of a stage, which returns the exit code.

    `stage` is `module:class`, imported with torch when data and models are known to be there; `before` is called with the
    settings.
    """

    class StageOptions(YamlOptions[Any]):
        description = doc
        schema = keys

    def run(options: StageOptions) -> None:
        started, config = time.perf_counter(), options.settings
        check_places(config)
        before(config)
        _train(load(stage), config, started)

    def main(argv: list[str] | None = None) -> int:
        return run_command(StageOptions, run, argv)

    return main


def check_places(config: Any) -> None:
    """Raises UserError for data or a model that is not there."""
    if path := getattr(config, "data_path", None):
        check_path(path)
    for key in MODELS:
        if path := getattr(config, key, None):
            check_folder(path, key)


def _train(stage: "type[SupervisedStage[Any]]", config: Any, started: float) -> None:
    from rlhf_dialog.runs.lock import lock_folder
    from rlhf_dialog.training.supervised.checkpoints import fingerprint_of, folder_of

    checkpoints, uses = folder_of(config.output), versions(*stage.packages)
    with lock_folder(checkpoints):
        fingerprint = fingerprint_of(config, uses)
        last = json_or(Path(config.output).expanduser() / stage.report_file, {}, dict)
        if config.resume == "auto" and last.get("fingerprint") == fingerprint:
            closing = f"{config.output}: is already what these settings, data and versions give"
        else:
            with new_folder(config.output) as folder:
                training = stage(config, folder, print)
                report = training.train()
                report["seconds"] = round(time.perf_counter() - started, 1)
                if "config" not in report:
                    report["settings"] = config.model_dump()
                    report[LOCAL_KEY] = local_names(report["settings"])
                report |= {"versions": uses, "fingerprint": fingerprint}
                (folder / stage.report_file).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
                if page := training.page(report):
                    (folder / "report.md").write_text(page, encoding="utf-8")
                    page = f"\n{page}\n"
            closing = f"{page}wrote {config.output} in {time.perf_counter() - started:.0f} s"
    shutil.rmtree(checkpoints, ignore_errors=True)
    print(closing)
