"""Everything that a push uploads: the files of a model and its card; the card of a reward model."""

from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult

from rlhf_dialog.config.loading import read_yaml
from rlhf_dialog.data.hub import LOCAL_KEY, LOCAL_NAMES
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.preferences import markdown
from rlhf_dialog.json_files import json_or, read_json
from rlhf_dialog.models.chat_agent import AGENT_FILE
from rlhf_dialog.publishing.card import CardRun, agent_card, card_header
from rlhf_dialog.publishing.data_set import DataSet, cell, describe_data_set
from rlhf_dialog.publishing.files import CARD, Files, folder_kind, published_files, settings_in
from rlhf_dialog.publishing.privacy import hide_names, hide_private, refuse_secrets, without_places


def make_package(folder: Path, repo: str, run: CardRun, key: str) -> Files:
    """The files of an agent or a reward model, with a card; `run` is the agent's. `key` named the folder.

    Raises UserError when the folder holds neither, when a file is damaged, and when one holds a token.
    """
    if folder_kind(folder, key) == "agent":
        card = agent_card(repo, settings_in(folder, key, AGENT_FILE), run, key)
    else:
        report = settings_in(folder, key, "report.json") if (folder / "report.json").is_file() else {}
        card = reward_card(repo, report, settings_in(folder, key), key)
    content = card.encode()
    refuse_secrets(CARD, content, key)
    return {**published_files(folder, key), CARD: content}


def read_run(folder: Path, evaluation: Path | None, metrics: dict[str, Any], versions: dict[str, str]) -> CardRun:
    """What a run folder says of its agent. Raises UserError for files that cannot be read."""
    config = folder / "config.yaml"
    settings = read_yaml(config) if config.is_file() else {}
    measured = _read_evaluation(evaluation) if evaluation else None
    names = frozenset([*json_or(folder / LOCAL_NAMES, [], list[str]), *_local_names(measured)])
    return CardRun(settings, measured, metrics, versions, names)


def _local_names(report: dict[str, Any] | None) -> list[str]:
    """What an evaluation or the report of a reward model says of the names in it that were places when it was written."""
    names = (report or {}).get(LOCAL_KEY, [])
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _read_evaluation(path: Path) -> dict[str, Any]:
    tree = read_json(path, f"--evaluation: {path} cannot be read: ", "; evaluate again")
    if not (isinstance(tree, dict) and {"settings", "baselines"} <= set(tree) and {"metrics", "after"} & set(tree)):
        raise UserError(
            f"--evaluation: {path} is not an output of rlhf-dialog evaluate; evaluate again, or name another file"
        )
    return tree


SPLITS = ("validation", "test")
LIMITS = """- It judges as its data taught it; its languages, topics and style are those of its data.
- It learned from what people wrote. A policy that is trained to please it can find replies that it likes and people do not.
- Compare its numbers with those of the majority class, if they are given, before you use it as a reward."""


def reward_card(repo: str, report: dict[str, Any], model: dict[str, Any], key: str) -> str:
    """The README.md of a reward model with that config.json; `report` is empty where there is none. Raises UserError."""
    settings = report.get("settings") or {}
    maker = "trained by rlhf-dialog" if report else "without a report of its training"
    try:
        local = _local_names(report)
        data = describe_data_set(settings.get("data_path"), local)
        header = card_header(
            repo, data, _results(report, data), pipeline_tag="text-classification", tags=["reward-model"]
        )
        parts = [
            f"# {repo.rpartition('/')[2]}\n\nA reward model for dialogues, {maker}: it reads a dialogue's last "
            "turns and a reply, and judges the reply.",
            f"## Use\n\nSet its name where a reward or `--judge` of rlhf-dialog takes a model: `{repo}`.",
            f"## Output\n\n{_output(model)}",
            f"## Data\n\n{data.text}",
            f"## Evaluation\n\n{_pairs(report) if 'normalisation' in report else _table(report)}",
            f"## Limits\n\n{LIMITS}",
            _settings(settings),
            "## Versions\n\n" + ", ".join(f"{name} {x}" for name, x in (report.get("versions") or {}).items()),
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{key}: its report.json is damaged ({error}); train again, or remove the file") from error
    return hide_names(f"{header}\n" + "\n\n".join(parts) + "\n", local)


def _output(model: dict[str, Any]) -> str:
    names = model.get("id2label") or {}
    if len(names) < 2:
        return "One number: higher is better."
    return "One class: " + ", ".join(f"{number} `{name}`" for number, name in names.items()) + "."


def _numbers(report: dict[str, Any]) -> dict[str, dict[str, float]]:
    """The plain numbers of each split that was measured; the held-out pairs of a preference model are the validation."""
    if "normalisation" in report:
        return {"validation": {"num_pairs": report["num_pairs"], "accuracy": report["accuracy"]["mean"]}}
    return {
        split: {name: x for name, x in report[split].items() if isinstance(x, int | float) and not isinstance(x, bool)}
        for split in SPLITS
        if isinstance(report.get(split), dict)
    }


def _pairs(report: dict[str, Any]) -> str:
    """The page of a preference model, with its warnings first, without its title."""
    normal = report["normalisation"]
    page = markdown(report | {"normalisation": normal | {"of": without_places(normal["of"])}})
    return page.partition("\n")[2].strip()


def _table(report: dict[str, Any]) -> str:
    rows = [f"| {split} | `{name}` | {x:.4g} |" for split, part in _numbers(report).items() for name, x in part.items()]
    majority = (report.get("validation") or {}).get("majority")
    note = f"\n\nAlways `{majority['class']}`: accuracy {majority['accuracy']:.3f} (validation)." if majority else ""
    return "\n".join(["| split | metric | value |", "|---|---|---|", *rows]) + note if rows else "Not measured."


def _results(report: dict[str, Any], data: DataSet) -> list[EvalResult]:
    return [
        EvalResult(
            task_type="text-classification",
            dataset_type=data.type,
            dataset_name=data.name,
            dataset_split=split,
            metric_type=name,
            metric_value=round(float(value), 4),
        )
        for split, found in _numbers(report).items()
        for name, value in found.items()
        if not name.startswith("num_")
    ]


def _settings(settings: dict[str, Any]) -> str:
    rows = [f"| {cell(k)} | {cell(hide_private(x))} |" for k, x in settings.items() if x is not None and k != "output"]
    return "\n".join(["## How it was made", "", "| setting | value |", "|---|---|", *rows])
