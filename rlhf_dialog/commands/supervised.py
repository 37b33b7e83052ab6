"""The commands of the supervised stages: their settings, the folder that is written whole, the report, the closing lines."""

import json
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rlhf_dialog.commands.command_line import new_folder, versions
from rlhf_dialog.commands.options import YamlOptions, run_command
from rlhf_dialog.data.hub import LOCAL_KEY, check_folder, local_names
from rlhf_dialog.data.sources import check_path
from rlhf_dialog.json_files import json_or
from rlhf_dialog.training.supervised.settings import (
    IntentConfig,
    PreferenceConfig,
    RelevanceConfig,
    SFTConfig,
    SupervisedKeys,
)
from rlhf_dialog.wings import load

MODELS = ("model_path", "tokenizer_path")
PACKAGES = ("rlhf-dialog", "torch", "transformers", "trl", "tokenizers", "datasets")


def make_command(keys: type[SupervisedKeys], stage: str, doc: str) -> Callable[..., int]:
    """The command line of a stage, which returns the exit code; `doc` begins its help.

    `stage` is `module:class`, imported with torch when data and models are known to be there.
    """

    class StageOptions(YamlOptions[Any]):
        description = doc
        schema = keys

    return partial(run_command, StageOptions, lambda options: _run(stage, options.settings))


def _run(stage: str, config: Any) -> None:
    """Raises UserError for data or a model that is not there, and for an output that holds something else."""
    started = time.perf_counter()
    check_path(config.data_path)
    for key in MODELS:
        if path := getattr(config, key, None):
            check_folder(path, key)
    kind = load(stage)
    from rlhf_dialog.runs.lock import lock_folder
    from rlhf_dialog.training.supervised.checkpoints import fingerprint_of, folder_of

    checkpoints, uses = folder_of(config.output), versions(*PACKAGES)
    with lock_folder(checkpoints):
        fingerprint = fingerprint_of(config, uses)
        last = json_or(Path(config.output).expanduser() / kind.report_file, {}, dict)
        if config.resume == "auto" and last.get("fingerprint") == fingerprint:
            closing = f"{config.output}: is already what these settings, data and versions give"
        else:
            with new_folder(config.output) as folder:
                training = kind(config, folder, print)
                report = training.train()
                report["seconds"] = round(time.perf_counter() - started, 1)
                if "config" not in report:
                    report["settings"] = training.config.model_dump()  # with what it has settled
                    report[LOCAL_KEY] = local_names(report["settings"])
                report |= {"versions": uses, "fingerprint": fingerprint}
                (folder / kind.report_file).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
                if page := training.page(report):
                    (folder / "report.md").write_text(page, encoding="utf-8")
                    page = f"\n{page}\n"
            closing = f"{page}wrote {config.output} in {time.perf_counter() - started:.0f} s"
    shutil.rmtree(checkpoints, ignore_errors=True)
    print(closing)


train_sft = make_command(
    SFTConfig,
    "rlhf_dialog.training.supervised.sft:SFT",
    "Supervised fine-tuning: train a causal LM, or a small GPT-2 from scratch, on the replies of the training dialogues.",
)
train_intent_classifier = make_command(
    IntentConfig,
    "rlhf_dialog.training.supervised.intent_classifier:IntentClassifier",
    "Intent classifier: train an encoder to predict the act of a turn (inform, question, directive, commissive).",
)
train_preference_model = make_command(
    PreferenceConfig,
    "rlhf_dialog.training.supervised.preference_model:PreferenceModel",
    "Preference model: train a reward model on pairs of replies, and report what it is worth beside rules without a model.",
)
train_relevance_model = make_command(
    RelevanceConfig,
    "rlhf_dialog.training.supervised.relevance.model:RelevanceTraining",
    "Relevance model: learn which reply fits which turns before it, for RelevanceReward and as a judge of an evaluation.",
)
