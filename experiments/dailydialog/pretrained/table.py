"""The tables of a pretrained size. They hold no text of the data; the lines of the chat are those of other people."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.dailydialog import published, table
from experiments.dailydialog.numbers import RowFile
from experiments.dailydialog.pretrained import measuring, targets, training
from experiments.dailydialog.pretrained.columns import ratio_of
from experiments.dailydialog.sizes import BEST, CHOSEN, GAE, LEARNED, MATCHED, PREDICTED, RLOO, START, Agent, Keys
from experiments.dailydialog.systems import System
from experiments.dailydialog.targets import percent, relative
from experiments.dailydialog.training import supervised_keys
from experiments.dailydialog.work import Work
from rlhf_dialog.atomic_files import replace_file
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation.intervals import Interval, difference, interval
from rlhf_dialog.json_files import read_json
from rlhf_dialog.rewards.base import READS_REFERENCE
from rlhf_dialog.runs.metrics_file import read_metrics

if TYPE_CHECKING:
    from experiments.dailydialog.rows import Table

SEED_COLUMNS = {
    "rouge1": "ROUGE-1",
    "rougeLsum": "ROUGE-Lsum",
    "meteor": "METEOR",
    "sacrebleu": "SacreBLEU",
    "judge_accuracy": "intent",
    "mean_words": "length",
    "meteor_eou": "METEOR, `<EOU>`",
    "sacrebleu_eou": "SacreBLEU, `<EOU>`",
    "meteor_margin": "METEOR margin",
    "rouge1_margin": "ROUGE-1 margin",
    "judge_2_accuracy": "intent, MiniLM",
    "intent_accuracy": "intent, the reward's",
}
MORE = {
    "score": "reward",
    "kl": "KL a reply",
    "distinct_2": "distinct-2",
    "copied_two": "copied, two turns",
    "truncated": "truncated",
}
PUBLISHED = ("rouge1_eou", "rougeLsum_eou", "meteor_eou", "sacrebleu_eou", "judge_accuracy", "mean_words")
IN_PERCENT = (
    "rouge1",
    "rougeLsum",
    "meteor",
    "sacrebleu",
    "judge_accuracy",
    "mean_words",
)  # OpenRL's documentation has these
TITLES = {
    START: "SFT",
    MATCHED: "SFT, distinct-2 of PPO by rloo",
    measuring.GREEDY: "SFT, greedy",
    LEARNED: "SFT, bias learned from the score",
    RLOO: "PPO by rloo",
    GAE: "PPO by gae",
}
TITLES |= {f"{BEST}_{count}": f"SFT, best of {count}" for count in measuring.BEST_COUNTS}
TITLES |= {f"{PREDICTED}_{BEST}_{count}": f"SFT, best of {count} by a prediction" for count in measuring.BEST_COUNTS}
SMALL_MODEL = 4.221  # nats a word of the small model of SIZE=short on 1,000 validation prompts
CLASSIFIER = 0.615  # of true replies, by the published classifier
Systems = dict[str, System]


def write(work: Work) -> None:
    """Write DIR/results.md, and the replies for blind readings."""
    first, low, sampled = (
        systems(work, name) for name in (measuring.AT_ONE, measuring.AT_LOW, measuring.SEED_SAMPLING)
    )
    low_table = published.table_of(work, 0.7)
    lines = ["# DailyDialog: a pretrained model", "", *cut(work), *verdict(first), ""]
    lines += ["## Temperature 1", "", *table_one(work, first), ""]
    lines += [*percentages(first), "", *beside_published(work, sampled), ""]
    lines += ["## Temperature 0.7", "", *markdown(low), ""]
    lines += [*acts(first, low_table.prompts), "", *leak(work), "", *chat(work), "", *trained(work), ""]
    lines += [*notes(work)]
    replace_file(work.root / table.RESULTS, "\n".join(lines) + "\n")
    write_replies(work, low_table)


def rows_of(work: Work, name: str) -> dict[str, list[list[str]]]:
    """System: for each seed the rows of its draws, in the order of the test stage's rows in this folder."""
    draws = work.size.draws if name == measuring.AT_ONE else 1
    found: dict[str, list[list[str]]] = {START: [measuring.drawn(START, draws)]}
    for agent in training.agents(work) if name == measuring.AT_ONE else training.first_agents(work):
        found.setdefault(agent.name, []).append(measuring.drawn(agent.folder, draws))
    for row in measuring.test_rows(work).get(name, []):
        if row["kind"] != "model":
            found[row["name"]] = [[row["name"]]]
    return found


def systems(work: Work, name: str) -> Systems:
    """What was measured in a folder of the test stage, by the name of the system."""
    folder, found = work.folder("test") / name, {}
    for key, rows in rows_of(work, name).items():
        if all(RowFile(folder, row).is_there() for some in rows for row in some):
            title = TITLES.get(key, key.replace("_", " "))
            reads = key.startswith(BEST)  # the reward is all of reference and act
            found[key] = System.read(title + READS_REFERENCE if reads else title, folder, rows)
    return found


def cut(work: Work) -> Iterator[str]:
    """What a machine without instructions for bfloat16 leaves out."""
    if work.plan.reduced:
        yield "**This processor has no instructions for bfloat16: half of the tokens, and one seed of each way.**"
        yield ""


def verdict(found: Systems) -> Iterator[str]:
    """How many targets are met, then each of them."""
    start, matched = found[START], found.get(MATCHED)
    reached = {
        RLOO: list(targets.of_ppo(start, found[RLOO], matched)),
        GAE: list(targets.of_ppo(start, found[GAE])),
    }
    for name, some in reached.items():
        yield f"**{TITLES[name]}: {sum(target.met is True for target in some)} of {len(some)} targets are met.**"
        yield ""
    yield from ("| system | target | |", "|---|---|---|")
    for name, some in reached.items():
        for target in some:
            yield f"| {TITLES[name]} | {target.name} | {target.word}: {target.numbers} |"


def speeds_of(work: Work) -> dict[str, float]:
    """Generated tokens a second of the whole loop, the mean of the runs of each way."""
    return {
        name: float(np.mean([speed_of(work.folder("ppo") / agent.folder) for agent in training.agents(work, name)]))
        for name in training.WAYS
    }


def speed_of(run: Path) -> float:
    """Generated tokens a second of the whole loop."""
    rows = read_metrics(run / "metrics.jsonl")
    steps = [0.0, *(row["time_steps"] for row in rows)]
    counts = [now - before for before, now in pairwise(steps)]
    return float(steps[-1] / sum(count / row["FPS"] for count, row in zip(counts, rows, strict=True)))


def table_one(work: Work, found: Systems) -> Iterator[str]:
    """The rows with the speed of the runs, and that of our benchmark."""
    speeds = " and ".join(f"{speed:.1f} by {name}" for name, speed in speeds_of(work).items())
    yield from markdown(found)
    measured = read_json(work.folder("speed") / "benchmark.json")["tokens_per_s"]
    yield ""
    yield (
        f"FPS: {speeds} generated tokens a second of the whole loop, two runs side by side with a core each "
        f"({machine(work)}). Our benchmark with the settings of OpenRL's documentation (a GPT-2 of 124 million parameters, "
        f"20 tokens, 5 epochs): {measured:.1f} with both cores."
    )


def machine(work: Work) -> str:
    plan = work.plan
    return f"{plan.processor}, {plan.cores} cores, {'bfloat16' if plan.use_amp else 'float32'}"


def markdown(found: Systems) -> Iterator[str]:
    """The rows of a folder, by the titles of their systems."""
    yield from table.markdown({one.title: one for one in found.values()}, SEED_COLUMNS, MORE, {})


def percentages(found: Systems) -> Iterator[str]:
    """What PPO has more than SFT in percent, beside what a long constant reply has: printed, no target."""
    yield from ("## In percent of SFT, as OpenRL's documentation has it", "")
    yield "A long constant reply, the same to every prompt, has these percentages too: by themselves they prove little."
    names = (*training.WAYS, "long_constant_reply")
    yield from ("", f"| | {' | '.join(found[name].title for name in names)} |", "|---" * (len(names) + 1) + "|")
    for metric in IN_PERCENT:
        cells = (percent(relative(found[START], found[name], metric)) for name in names)
        yield f"| {SEED_COLUMNS[metric]} | {' | '.join(cells)} |"


def beside_published(work: Work, found: Systems) -> Iterator[str]:
    """The rows with the sampling of OpenRL's documentation beside the published ones."""
    yield from ("## Beside what was published", "")
    yield (
        "The only rows with the published sampling: temperature 1, top_k 20, at least 2 tokens; `<EOU>` ends references and "
        "finished replies. The published rows are of 3,123 prompts, a GPT-2 of 124 million parameters, and the reward's own "
        "classifier."
    )
    yield from (
        "",
        f"| replies | FPS | {' | '.join(published.COLUMNS.values())} |",
        "|---" * (len(PUBLISHED) + 2) + "|",
    )
    speeds = speeds_of(work)
    for name, one in found.items():
        points = [one.point(metric) for metric in PUBLISHED]
        yield published.line(one.title, speeds.get(name), *(np.nan if point is None else point for point in points))
    for title, values in published.PUBLISHED.items():
        yield published.line(title, *values)


def acts(found: Systems, prompts: Sequence[Dialogue]) -> Iterator[str]:
    """How often each classifier finds the act of the true reply to the test prompts."""
    true, counts = found["true_replies"], Counter(one.act for one in prompts)
    majority = counts.most_common(1)[0][1] / len(prompts)
    yield from ("## The judges of acts on people's replies", "")
    yield f"Always the most frequent act: {majority:.3f} of the prompts; the published classifier: {CLASSIFIER}."
    yield from ("", "| classifier | accuracy |", "|---|---|")
    names = {
        "judge_accuracy": "judge, BERT from scratch",
        "judge_2_accuracy": "judge, MiniLM",
        "intent_accuracy": "reward, MiniLM",
    }
    for metric, title in names.items():
        yield f"| {title} | {shown(true.interval(metric))} |"


def leak(work: Work) -> Iterator[str]:
    """What the start finds of test dialogues that nobody has shown it here."""
    found = read_json(work.folder("leak") / "leak.json")
    sets = {name: ratio_of(one["nats"], one["words"]) for name, one in found["sets"].items()}
    yield from ("## Has the start seen the test split?", "")
    yield "Nats a word of the last reply of a dialogue under the start, before any fine-tuning."
    yield from ("", "| replies | nats a word |", "|---|---|")
    titles = {
        "in order": "test dialogues",
        "shuffled": "the same, the turns before in another order",
        "chitchat": "chitchat",
    }
    for name, title in titles.items():
        yield f"| {title} | {shown(interval(sets[name]))} |"
    yield ""
    yield f"Shuffled less in order: {shown(difference(sets['in order'], sets['shuffled']))}."
    yield f"Of {found['continued']} most likely continuations {found['equal']} equal the reference."


def chat(work: Work) -> Iterator[str]:
    """The lines with the replies; one that repeats a training utterance is its number."""
    rows = read_json(work.folder("chat") / "chat.json")
    titles = list(rows[0]["replies"])
    yield from ("## A chat", "")
    yield (
        "First lines of conversations of other people (chitchat, MIT), drawn by a seed, at temperature 0.7. A reply that repeats "
        "a training utterance is the number of that utterance."
    )
    heads = [TITLES.get(title, title) for title in titles]
    yield from ("", f"| line | {' | '.join(heads)} |", "|---" * (len(titles) + 1) + "|")
    for row in rows:
        cells = [row["line"], *(_reply(row, title) for title in titles)]
        yield f"| {' | '.join(' '.join(cell.split()).replace('|', '/') for cell in cells)} |"


def _reply(row: dict[str, Any], title: str) -> str:
    number = row["repeats"][title]
    return str(row["replies"][title]) if number is None else f"[training utterance {number}]"


def trained(work: Work) -> Iterator[str]:
    """What was trained, with what it was worth."""
    words = read_json(work.folder("sft") / "words.json")
    epochs = supervised_keys(work, "sft")["epochs"]
    before, chosen = words["pretrained"], read_json(work.root / CHOSEN)
    weights = " (its weights of 4 bits, dequantised)" if training.is_smollm2(work) else ""
    yield from ("## What was trained", "")
    yield f"- The start: {'SmolLM2-135M-Instruct' if weights else 'a model of --model'}{weights}, hash {work.plan.model}."
    yield (
        f"- SFT of all weights, {epochs:g} of an epoch, no system prompt but the template's own: "
        f"{words['nats_a_word']:.3f} nats a word with its end ({words['prompts']} validation prompts); before "
        f"{before['nats_a_word']:.3f} ({before['prompts']} prompts); the small model of SIZE=short {SMALL_MODEL}."
    )
    held_out = read_json(work.model("next_act") / "report.json")["validation"]
    yield (
        f"- The act that comes next, from the prompt alone: accuracy {held_out['accuracy']:.3f} on {held_out['num_pairs']} "
        f"validation prompts, macro F1 {held_out['macro_f1']:.3f}; always {held_out['majority']['class']}: "
        f"{held_out['majority']['accuracy']:.3f}."
    )
    for name, keys in chosen["settings"].items():
        runs = ", ".join(agent.folder for agent in training.agents(work, name))
        others = "; ".join(_words(some) for some in work.size.settings[name])
        yield (
            f"- {TITLES[name]}: {work.tokens:,} generated tokens in each of {runs}, with {_words(keys)}, of {others} "
            f"({work.setting_tokens:,} tokens each, seed {training.SETTING_SEED}, by the gain over the reference; diversity "
            f"and length on {work.validation_prompts} validation prompts)."
        )
    yield f"- Chosen before test was read: configuration {chosen['configuration']}."
    yield f"- Machine: {machine(work)}."


def _words(keys: Keys) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in keys.items())


def notes(work: Work) -> Iterator[str]:
    """What a reader of the tables has to know."""
    yield (
        f"{work.size.test_prompts} test prompts of five turns, of whole dialogues. "
        "Intervals are 95 %, over dialogues, and over training seeds where a system has several (Student's t, both drawn). At "
        "temperature 1 each training seed is in the rows, elsewhere the first of each way."
    )
    yield ""
    yield (
        "Reward: half the match of the intent and half METEOR, for both ways; PPO by rloo was paid the expectation of the match "
        "under the classifier of the next act. "
        "Margin: the metric with the prompt's own reference less that with another prompt's (a fixed derangement). "
        "The best of several replies are chosen by the reward, which reads the reference, or by a cross-validated "
        "prediction of it from prompt and reply (`experiments.prediction`). "
        f"The bias is learned from {work.size.bias_tokens:,} tokens, 8 responses to each of {work.size.bias_step} prompts "
        "in a step; the row with the distinct-2 of PPO has its "
        f"temperature from {measuring.MATCH_PROMPTS} of the prompts. Intent: whether the judge finds the "
        "act of the reference. KL a reply: in nats, at the temperature of the row, in the first draw."
    )


def shown(found: Interval | None) -> str:
    return "-" if found is None else f"{found['mean']:.3f} [{found['low']:.3f}, {found['high']:.3f}]"


def write_replies(work: Work, measured: "Table") -> None:
    """The replies of SFT, and of the first run of each way, to the test prompts at the lower temperature, for readers."""
    from rlhf_dialog.evaluation import report

    for agent in training.first_agents(work):
        names = {"before": f"{START}_0", "after": f"{agent.folder}_0"}
        answers = {key: published.stored(measured, row) for key, row in names.items()}
        replace_file(replies_path(work, agent), report.replies_text(measured.prompts, answers))


def replies_path(work: Work, agent: Agent) -> Path:
    return work.folder("table") / f"replies_{agent.name}.jsonl"


def blind_commands(work: Work) -> list[str]:
    """How the blind readings are made."""
    return [
        f"python -m experiments.blind --replies {replies_path(work, agent)} --pairs 60 --systems after before "
        f"--output {work.root / f'reading_{agent.name}'}"
        for agent in training.first_agents(work)
    ]
