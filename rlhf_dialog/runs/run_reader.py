"""What a run folder holds for a page about the run: metrics, settings, replies, versions and hashes."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlhf_dialog.config.loading import read_yaml
from rlhf_dialog.data.hub import LOCAL_NAMES
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.report import verdict_line
from rlhf_dialog.evaluation.run_page.page import PageSample, RunRecord
from rlhf_dialog.found_files import check_files, is_below
from rlhf_dialog.json_files import FAULTS, json_or, parse_json
from rlhf_dialog.runs.checkpoint import checkpoint_of_found_run, checkpoints_of
from rlhf_dialog.runs.metrics_file import METRICS, join_ranks, rank_files, read_metrics
from rlhf_dialog.runs.services.ledger import LEDGER, read_ledger

READ = ("config.yaml", LOCAL_NAMES, "replies.jsonl", "evaluation.json")
TURNS = 3  # of a prompt that are shown


def check_run(folder: Path) -> None:
    """Raises UserError for a file that a page, a plot or a card reads of a run and that may not be opened (`found_files`)."""
    of_ranks = [path.name for name in (METRICS, LEDGER) for path in rank_files(folder / name)]
    check_files(folder, [*of_ranks, *READ])
    checkpoints = folder / "checkpoints"
    if is_below(checkpoints, folder):  # others are not read
        check_files(checkpoints, ["latest", *(f"{one.name}/trainer.json" for one in checkpoints_of(checkpoints))])


def read_run(folder: Path) -> RunRecord:
    """The run in the folder. Raises UserError for one without metrics, and for files that are damaged or may not be opened."""
    check_run(folder)
    metrics, config = folder / METRICS, folder / "config.yaml"
    try:
        ranks = [read_metrics(path) for path in rank_files(metrics)]
        rows = join_ranks(ranks) if len(ranks) > 1 else ranks[0]
    except OSError as error:
        raise UserError(f"{metrics}: cannot be read: {error.strerror}; name the folder of a run") from error
    if not rows:
        raise UserError(f"{metrics}: has no metrics yet; train first")
    settings = read_yaml(config) if config.is_file() else {}
    run = RunRecord(str(folder), rows, settings, read_samples(folder), facts_of(folder, len(rows)))
    with suppress(OSError):
        newest, first, pairs = read_ledger(*rank_files(folder / LEDGER))
        run = replace(run, newest=newest, first=first, pairs=pairs)
    return run


def read_samples(folder: Path) -> list[PageSample]:
    """The replies that `evaluate --replies` has written into the folder. Raises UserError when the file is damaged."""
    path, samples = folder / "replies.jsonl", []
    for row in read_replies(path) if path.is_file() else ():
        references = row.get("references")
        reference = references[0] if isinstance(references, list) and references else ""
        replies = {name: one["response"] for name, one in row["replies"].items()}
        samples.append(PageSample("\n".join(row["prompt"][-TURNS:]), str(reference), replies))
    return samples


def read_replies(path: Path) -> list[dict[str, Any]]:
    """The rows of a file that `evaluate --replies` wrote. Raises UserError when it is something else."""
    try:
        rows = [parse_json(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        if not rows or not all(_is_row(row) for row in rows):
            raise ValueError("no replies")
    except (OSError, ValueError) as error:
        raise UserError(f"--replies: {path} is not a file that `evaluate --replies` wrote: {error}") from error
    return rows


def _is_row(row: Any) -> bool:
    return (
        isinstance(row, dict)
        and isinstance(row.get("prompt"), list)
        and all(isinstance(turn, str) for turn in row["prompt"])
        and isinstance(row.get("replies"), dict)
        and all(isinstance(one, dict) and isinstance(one.get("response"), str) for one in row["replies"].values())
    )


def facts_of(folder: Path, num_iterations: int) -> list[tuple[str, str]]:
    """How the run was made, as far as the folder says: a command, versions, hashes, and its evaluation in a sentence."""
    facts = [("iterations", str(num_iterations))]
    if (folder / "config.yaml").is_file():
        facts.append(("the same run again", f"rlhf-dialog train --config {folder}/config.yaml --experiment_name again"))
    with suppress(*FAULTS, UserError):
        checkpoint = checkpoint_of_found_run(folder)
        state = json_or(checkpoint / "trainer.json", {}, dict[str, Any]) if checkpoint else {}
        found = [(str(name), str(version)) for name, version in state.get("versions", {}).items()]
        found += [(str(key), value) for key, value in state.get("identity", {}).items() if isinstance(value, str)]
        hashes = {"settings of the run, SHA-256": "identity_sha256", "newest checkpoint, SHA-256": "sha256"}
        facts += found + [(name, str(state[key])) for name, key in hashes.items() if key in state]
    with suppress(*FAULTS):
        evaluation = json_or(folder / "evaluation.json", {}, dict[str, Any])
        said = verdict_line(evaluation) if "after" in evaluation else None
        facts += [("evaluation", said)] if said else []
        facts += [("agent, SHA-256", str(evaluation["settings"]["agent_hash"]))]
    return facts
