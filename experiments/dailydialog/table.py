"""The table of results: verdict, targets, all rows, and what was trained. It holds no text of the data."""

import math
from collections.abc import Iterator
from pathlib import Path

from experiments.dailydialog import choosing, curve, published
from experiments.dailydialog.reading import POINTS, RLOO, WITH_INTERVAL, pretrained, systems, title_of
from experiments.dailydialog.sizes import BEST, BEST_SFT, COUNTS, LEARNED, MATCHED, SHIFT, START, TEMPERATURES
from experiments.dailydialog.systems import System
from experiments.dailydialog.targets import Target, targets
from experiments.dailydialog.training import supervised_keys
from experiments.dailydialog.work import Work
from rlhf_dialog.atomic_files import replace_file
from rlhf_dialog.evaluation.intervals import Interval
from rlhf_dialog.json_files import read_json

LEGACY = {"meteor": "METEOR", "rouge1": "ROUGE-1", "rougeLsum": "ROUGE-Lsum", "sacrebleu": "BLEU"}
RESULTS = "results.md"


def write(work: Work) -> None:
    """Write DIR/results.md, and the replies for a blind reading."""
    tables = {t: systems(work, "test", t) for t in TEMPERATURES}
    few = {one.title: one for one in pretrained(work)}
    lines = ["# DailyDialog: results", "", *verdict(tables, few)]
    for temperature, rows in tables.items():
        lines += [
            "",
            f"## Temperature {temperature:g}",
            "",
            *markdown(rows, WITH_INTERVAL, POINTS, few if temperature < 1 else {}),
            "",
            f"![The score and the judges against KL a reply]({picture_name(temperature)})",
            "",
            *choosing.sentences(rows),
        ]
        choosing.draw(rows, work.root / picture_name(temperature))
    lines += ["", "## METEOR, ROUGE and BLEU", ""]
    for temperature, rows in tables.items():
        lines += [f"Temperature {temperature:g}:", "", *markdown(rows, {}, LEGACY, {}, "{:.3f}"), ""]
    lines += [
        *published.markdown(work),
        "",
        *curve.markdown(work),
        "",
        *trained(work),
        "",
        *audited(work),
        "",
        *notes(work),
    ]
    replace_file(work.root / RESULTS, "\n".join(lines) + "\n")
    write_replies(work)


def picture_name(temperature: float) -> str:
    return f"frontier_{temperature:g}.png"


def all_targets(rows: dict[str, System], few: dict[str, System]) -> list[Target]:
    """Those of PPO with rloo against the SFT model. few: what a pretrained language model has read."""
    start, agents, best, on_best, *biases = (
        rows[title_of(name)] for name in (START, RLOO, f"{BEST}_{COUNTS[0]}", BEST_SFT, SHIFT, LEARNED)
    )
    read = (few[start.title], few[agents.title]) if {start.title, agents.title} <= few.keys() else None
    return list(targets(start, agents, best, on_best, biases, read, rows.get(title_of(MATCHED))))


def verdict(tables: dict[float, dict[str, System]], few: dict[str, System]) -> Iterator[str]:
    """How many targets are met, then each of them."""
    reached = {t: all_targets(rows, few if t < 1 else {}) for t, rows in tables.items()}
    for temperature, some in reached.items():
        rows = tables[temperature]
        numbers = [rows[title_of(name)].point("relevance_r10") or 0.0 for name in (START, RLOO)]
        met = sum(target.met is True for target in some)
        yield (
            f"**At temperature {temperature:g} {met} of {len(some)} targets are met; R@10 by the convolution is "
            f"{numbers[1]:.3f} after PPO, {numbers[0]:.3f} before.**"
        )
    heads = " | ".join(f"temperature {t:g}" for t in reached)
    yield from ("", f"| PPO with rloo against the SFT model | {heads} |", "|---" * (len(reached) + 1) + "|")
    for several in zip(*reached.values(), strict=True):
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
        cells += [_number(system.point(key), form) for key in others]
        yield f"| {title} | " + " | ".join([*cells, f"{system.seconds:.0f}"]) + " |"


def _number(point: float | None, form: str) -> str:
    return "-" if point is None or not math.isfinite(point) else form.format(point)


def _cell(found: Interval | None) -> str:
    return "-" if found is None else f"{found['mean']:.3f} [{found['low']:.3f}, {found['high']:.3f}]"


def trained(work: Work) -> Iterator[str]:
    """What was trained, with what it was worth."""
    words = read_json(work.folder("sft") / "words.json")
    yield from ("## What was trained", "")
    yield f"- SFT: {supervised_keys(work, 'sft')['epochs']:g} epochs; validation loss {words['nats_a_word']:.3f} nats a word."
    if beside := words.get("pretrained"):
        yield f"- SmolLM2, which never saw the data: {beside['nats_a_word']:.3f} nats a word ({beside['prompts']} prompts)."
    yield f"- PPO: {work.tokens:,} generated tokens in each run; runs: {', '.join(a.folder for a in work.size.agents)}."
    counts = read_json(work.folder("best_of_4") / "drawn.json")
    yield f"- Draws: {counts['tokens']:,} tokens, {counts['best']:,} best replies, {counts['pairs']:,} pairs."
    yield f"- Machine: {work.plan.processor}, {work.plan.cores} cores."


def audited(work: Work) -> Iterator[str]:
    """What the audit of the reward has found, without the texts that it found."""
    found = read_json(work.folder("audit") / "audit.json")["findings"]
    yield from ("## Audit of the reward", "")
    names = [str(finding["probe"]) for finding in found if finding["hole"]]
    shown = dict.fromkeys("a constant" if name.startswith(("'", '"')) else name for name in names)
    yield f"{len(names)} holes" + (f": {', '.join(shown)}." if names else ".")
    if unjudged := [finding["probe"] for finding in found if finding.get("unjudged")]:
        yield f"Found, not judged: {', '.join(unjudged)}."


def notes(work: Work) -> Iterator[str]:
    """What a reader of the tables has to know."""
    draws = work.size.draws
    yield (
        "Intervals are 95 %, over dialogues, and over training seeds where a system has several (Student's t, both drawn). "
        f"The SFT model and the agents have {draws} draws of each reply, whose mean counts; other rows have one. Targets in "
        "percent are of the difference, divided by the mean of the SFT model."
    )
    yield ""
    yield (
        "R@k: the reply's own prompt is among the first k of 100, by a judge that learned from the other half of the "
        "dialogues. KL a reply: the exact KL divergence from the SFT model before each token, summed, at the temperature of the "
        "row, in the first draw; of the best of n log n - (n - 1) / n, a bound. Seconds: to draw and measure a row once."
    )


def write_replies(work: Work) -> None:
    """`replies.jsonl` of SFT model and rloo to the test prompts, at the lower temperature, as `experiments.blind` reads it."""
    from rlhf_dialog.evaluation import report

    table = published.table_of(work, min(TEMPERATURES))
    first = next(agent for agent in work.size.agents if agent.name == RLOO)
    names = {"before": f"{START}_0", "after": f"{first.folder}_0"}
    answers = {key: published.stored(table, row) for key, row in names.items()}
    replace_file(replies_path(work), report.replies_text(table.prompts, answers))


def replies_path(work: Work) -> Path:
    return work.folder("table") / "replies.jsonl"


def blind_command(work: Work) -> str:
    """How the blind reading is made."""
    output = work.root / "reading"
    return f"python -m experiments.blind --replies {replies_path(work)} --pairs 60 --systems after before --output {output}"
