"""The table of results: verdict, targets, all rows, what was trained and how long it took. It holds no text of the data."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rlhf_dialog.atomic_files import replace_file
from rlhf_dialog.commands.dailydialog.measuring import BEST, BEST_SFT, BIAS, COUNTS, DPO, SAID, START, TEMPERATURES
from rlhf_dialog.commands.dailydialog.numbers import RowFile
from rlhf_dialog.commands.dailydialog.record import done
from rlhf_dialog.commands.dailydialog.scene import Scene
from rlhf_dialog.commands.dailydialog.systems import System
from rlhf_dialog.commands.dailydialog.targets import Target, targets
from rlhf_dialog.evaluation.intervals import Interval
from rlhf_dialog.own_files import read_json

WITH_INTERVAL = {
    "relevance_r1": "R@1 convolution",
    "relevance_r10": "R@10 convolution",
    "relevance_2_r1": "R@1 bag",
    "relevance_2_r10": "R@10 bag",
    "encoder_similarity": "MiniLM",
    "mutual_information": "SmolLM2, mutual information",
    "likelihood": "SmolLM2, log-probability",
    "meteor_margin": "METEOR margin",
    "judge_macro_f1": "act F1",
}
POINTS = {
    "kl": "KL a reply",
    "distinct_2": "distinct-2",
    "mean_words": "words",
    "truncated": "truncated",
    "copied_two": "copied, two turns",
    "score": "reward",
    "relevance": "relevance",
    "copy_price": "copy price",
    "length_hold": "length hold",
}
LEGACY = {"meteor": "METEOR", "rouge1": "ROUGE-1", "rougeLsum": "ROUGE-Lsum", "sacrebleu": "BLEU"}
RLOO = "rloo"
RESULTS = "results.md"
TITLES = {START: "SFT", BEST_SFT: "SFT on best of 4", DPO: "DPO", RLOO: "PPO, rloo", BIAS: "SFT, one bias"}


def write(scene: Scene) -> None:
    """Write DIR/results.md, and the replies for a blind reading."""
    tables = {t: systems(scene, "test", t) for t in TEMPERATURES}
    few = {one.title: one for one in pretrained(scene)}
    lines = ["# DailyDialog: results", "", *verdict(tables)]
    for temperature, rows in tables.items():
        lines += [
            "",
            f"## Temperature {temperature:g}",
            "",
            *markdown(rows, WITH_INTERVAL, POINTS, few if temperature < 1 else {}),
        ]
    lines += ["", "## METEOR, ROUGE and BLEU", ""]
    for temperature, rows in tables.items():
        lines += [f"Temperature {temperature:g}:", "", *markdown(rows, {}, LEGACY, {}, "{:.3f}"), ""]
    lines += [*trained(scene), "", *audited(scene), "", *notes(scene)]
    replace_file(scene.work / RESULTS, "\n".join(lines) + "\n")
    write_replies(scene)


def systems(scene: Scene, stage: str, temperature: float) -> dict[str, System]:
    """Every system that the stage has measured, by its title, in the order of the table."""
    folder, draws = scene.folder(stage) / f"at_{temperature:g}", scene.size.draws if stage == "test" else 1
    names: dict[str, list[list[str]]] = {START: [_draws(START, draws)]}
    for agent in scene.size.agents:
        names.setdefault(agent.name, []).append(_draws(agent.folder, draws))
    names |= {f"{BEST}_{count}": [[f"{BEST}_{count}"]] for count in COUNTS}
    names |= {one: [[f"{one}_0"]] for one in (BEST_SFT, DPO)}
    names[BIAS] = [[f"{BIAS}_{agent.seed}"] for agent in scene.size.agents if agent.name == RLOO]
    names |= {name: [[name]] for name in SAID}
    found = {name: _read(name, folder, rows) for name, rows in names.items()}
    return {one.title: one for one in found.values() if one is not None}


def pretrained(scene: Scene) -> Iterator[System]:
    """What a pretrained language model has read, if one was there."""
    folder = scene.folder("test") / "pretrained"
    names: dict[str, list[list[str]]] = {START: [[f"{START}_0"]]}
    for agent in scene.size.agents:
        names.setdefault(agent.name, []).append([f"{agent.folder}_0"])
    names |= {f"{BEST}_2": [[f"{BEST}_2"]], BEST_SFT: [[f"{BEST_SFT}_0"]], "true_replies": [["true_replies"]]}
    yield from (one for name, rows in names.items() if (one := _read(name, folder, rows)))


def _draws(name: str, count: int) -> list[str]:
    return [f"{name}_{draw}" for draw in range(count)]


def _read(name: str, folder: Path, rows: Sequence[Sequence[str]]) -> System | None:
    if not all(RowFile(folder, row).is_there() for some in rows for row in some):
        return None
    return System.read(title_of(name), folder, rows)


def title_of(name: str) -> str:
    if name.startswith(f"{BEST}_"):
        return f"SFT, best of {name.rpartition('_')[2]}"
    return TITLES.get(name, name.replace("_", " ") if name in SAID else f"PPO, {name}")


def all_targets(rows: dict[str, System]) -> list[Target]:
    """Those of PPO with rloo against the SFT model."""
    asked = [rows[title_of(name)] for name in (START, RLOO, f"{BEST}_{COUNTS[0]}", BEST_SFT, BIAS)]
    return list(targets(*asked))


def verdict(tables: dict[float, dict[str, System]]) -> Iterator[str]:
    """How many targets are met, then each of them."""
    found = {t: all_targets(rows) for t, rows in tables.items()}
    for temperature, some in found.items():
        rows = tables[temperature]
        numbers = [rows[title_of(name)].point("relevance_r10") or 0.0 for name in (START, RLOO)]
        met = sum(target.met is True for target in some)
        yield (
            f"**At temperature {temperature:g} {met} of {len(some)} targets are met; R@10 by the convolution is "
            f"{numbers[1]:.3f} after PPO, {numbers[0]:.3f} before.**"
        )
    heads = " | ".join(f"temperature {t:g}" for t in found)
    yield from ("", f"| PPO with rloo against the SFT model | {heads} |", "|---" * (len(found) + 1) + "|")
    for several in zip(*found.values(), strict=True):
        cells = " | ".join(f"{target.word}: {target.numbers}" for target in several)
        yield f"| {several[0].name} | {cells} |"


def markdown(
    rows: dict[str, System],
    with_interval: dict[str, str],
    points: dict[str, str],
    few: dict[str, System],
    form: str = "{:.3g}",
) -> Iterator[str]:
    """One line for each system. few: the same systems, as far as a pretrained language model has read them."""
    measured = [*rows.values(), *few.values()]
    columns = {key: title for key, title in with_interval.items() if any(one.statistic(key) for one in measured)}
    others = {key: title for key, title in points.items() if any(one.statistic(key) for one in measured)}
    heads = ["replies", *columns.values(), *others.values(), "seconds"]
    yield "| " + " | ".join(heads) + " |"
    yield "|---" * len(heads) + "|"
    for title, system in rows.items():
        beside = few.get(title, system)
        cells = [_cell(system.interval(key) or beside.interval(key)) for key in columns]
        cells += ["-" if (point := system.point(key)) is None else form.format(point) for key in others]
        yield f"| {title} | " + " | ".join([*cells, f"{system.seconds:.0f}"]) + " |"


def _cell(found: Interval | None) -> str:
    return "-" if found is None else f"{found['mean']:.3f} [{found['low']:.3f}, {found['high']:.3f}]"


def trained(scene: Scene) -> Iterator[str]:
    """What was trained, with what it was worth, and how long each stage took."""
    plan = scene.plan
    words = read_json(scene.folder("sft") / "words.json")
    yield from ("## What was trained", "")
    yield f"- SFT: {plan['epochs']} epochs; validation loss {words['nats_a_word']:.3f} nats a word."
    yield f"- PPO: {plan['tokens']:,} generated tokens in each run; runs: {', '.join(a.folder for a in scene.size.agents)}."
    counts = read_json(scene.folder("best_of_4") / "drawn.json")
    yield f"- Draws: {counts['tokens']:,} tokens, {counts['best']:,} best replies, {counts['pairs']:,} pairs."
    yield f"- Machine: {plan['processor']}, {plan['cores']} cores."
    yield from ("", "| stage | seconds | estimate, minutes |", "|---|---|---|")
    for path in sorted(scene.work.glob("*/done.json"), key=lambda path: path.stat().st_mtime):
        minutes = plan["minutes"].get(path.parent.name)
        yield f"| {path.parent.name} | {done(path.parent)['seconds']:.0f} | {'-' if minutes is None else minutes} |"


def audited(scene: Scene) -> Iterator[str]:
    """What the audit of the reward has found, without the texts that it found."""
    found = read_json(scene.folder("audit") / "audit.json")["findings"]
    yield from ("## Audit of the reward", "")
    holes = [str(finding.get("name", finding.get("kind", "one"))) for finding in found if finding["hole"]]
    yield f"{len(holes)} holes" + (f": {', '.join(holes)}." if holes else ".")


def notes(scene: Scene) -> Iterator[str]:
    """What a reader of the tables has to know."""
    draws = scene.size.draws
    yield (
        "Intervals are 95 %, over dialogues, and over training seeds where a system has several (Student's t, both drawn). "
        f"The SFT model and the agents have {draws} draws of each reply, whose mean counts; other rows have one. Targets in "
        "percent are of the difference, divided by the mean of the SFT model."
    )
    yield ""
    yield (
        "R@k: the reply's own prompt is among the first k of 100, by a judge that learned from the other half of the "
        "dialogues. KL a reply: the agent's log-probability less the SFT's, at the temperature of the row; of the best of n "
        "log n - (n - 1) / n, a bound. Seconds: to draw and measure a row once."
    )


def validation_table(scene: Scene) -> dict[str, dict[str, dict[str, float | None]]]:
    """Temperature -> system -> metric -> mean, for `chosen.json`."""
    metrics = [*WITH_INTERVAL, *POINTS]
    return {
        f"{t:g}": {
            title: {metric: system.point(metric) for metric in metrics}
            for title, system in systems(scene, "validation", t).items()
        }
        for t in TEMPERATURES
    }


def write_replies(scene: Scene) -> None:
    """`replies.jsonl` of SFT model and rloo to the test prompts, at the lower temperature, as `rlhf-dialog blind` reads it."""
    from rlhf_dialog.commands.dailydialog.rows import Plan, Table
    from rlhf_dialog.evaluation import report

    name = f"at_{min(TEMPERATURES):g}"
    plan = Plan(**json.loads((scene.folder("test") / f"{name}.json").read_text(encoding="utf-8")))
    table = Table(plan)
    first = next(agent for agent in scene.size.agents if agent.name == RLOO)
    names = {"before": f"{START}_0", "after": f"{first.folder}_0"}
    answers = {key: table.kept(row, lambda: _missing(scene)) for key, row in names.items()}
    replace_file(replies_path(scene), report.replies_of(table.prompts, answers))


def _missing(scene: Scene) -> Any:
    from rlhf_dialog.errors import UserError

    raise UserError(f"{scene.folder('test')}: has lost replies; begin the stage again with --again test")


def replies_path(scene: Scene) -> Path:
    return scene.folder("table") / "replies.jsonl"


def blind_command(scene: Scene) -> str:
    """How the blind reading is made."""
    output = scene.work / "reading"
    return f"rlhf-dialog blind --replies {replies_path(scene)} --pairs 60 --systems after before --output {output}"
