"""How far a `JudgeReward` can be trusted: what docs/REWARDS.md asks before one is believed, measured on replies.

python -m experiments.judge --replies runs/table/replies.jsonl --judge judge.yaml --encoder fetched/minilm --output judge.json

The replies are those that `experiments.smollm2 table --replies` and `rlhf-dialog evaluate --replies` write; the judge YAML has
the `args` of a JudgeReward. Of `mode: score`: the share without a score, how often each score is given, and its rank correlations
with a reply's words and with its margin under a sentence encoder: the cosine with its own last turn, less that with another
prompt's. Of `mode: rank`: how often two replies keep their order when the judge sees them in the opposite one, and how often the
reply that it sees first, or last, is the best. N prompts, K systems.
"""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from rlhf_dialog.atomic_files import replace_json
from rlhf_dialog.commands.options import Options, option, run_command
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.metrics.text import others
from rlhf_dialog.rewards.base import NoScore
from rlhf_dialog.rewards.encoder_similarity import EncoderSimilarity
from rlhf_dialog.rewards.judge import JudgeReward


class JudgeOptions(Options):
    description = __doc__
    replies: Path = option("JSONL file: prompts, each with the replies of several systems")
    judge: Path = option("YAML file with the `args` of a JudgeReward")
    encoder: str = option("folder of a sentence encoder, such as fetched/minilm")
    output: Path = option("JSON file to write")
    prompts: int = option("number of prompts, from the first on (default: 100)", 100)


def run(options: JudgeOptions) -> None:
    """Ask the judge, and write what its scores and rankings are like."""
    rows = [json.loads(line) for line in options.replies.read_text(encoding="utf-8").splitlines()[: options.prompts]]
    args = yaml.safe_load(options.judge.read_text(encoding="utf-8"))
    groups = [group for i, row in enumerate(rows) if (group := replies_of(row, i))]
    found = {"prompts": len(groups), "scored": scored(JudgeReward(**args), groups, EncoderSimilarity(options.encoder))}
    found["ranked"] = ranked(JudgeReward(**{**args, "mode": "rank", "score_by": "answer"}), groups)
    replace_json(options.output, found)
    print(json.dumps(found, indent=1))


def replies_of(row: dict[str, Any], number: int) -> list[Dialogue]:
    """The K replies to a prompt, those with the same text once."""
    texts = dict.fromkeys(reply["response"] for reply in row["replies"].values())
    return [Dialogue(row["prompt"], text, meta={"group": number}) for text in texts if text]


def scored(
    judge: JudgeReward, groups: list[list[Dialogue]], similarity: Callable[[list[Dialogue]], list[float]]
) -> dict[str, Any]:
    """What `mode: score` says of every reply."""
    from scipy.stats import spearmanr

    dialogues = [dialogue for group in groups for dialogue in group]
    judge.begin_scoring("rollout", 0)
    scores = judge.score_available(dialogues)
    swapped = [
        replace(groups[place][0], response=dialogue.response)
        for place, group in zip(others(len(groups), 0), groups, strict=True)
        for dialogue in group
    ]
    margins = [own - other for own, other in zip(similarity(dialogues), similarity(swapped), strict=True)]
    words = [len(dialogue.response.split()) for dialogue in dialogues]
    read = [i for i, score in enumerate(scores) if not isinstance(score, NoScore)]
    values = [scores[i] for i in read]
    different = len(set(values)) > 1
    return {
        "replies": len(scores),
        "without_score": 1 - len(read) / len(scores),
        "scores": {str(round(value, 1)): count for value, count in sorted(Counter(values).items())[:20]},
        "with_words": float(spearmanr(values, [words[i] for i in read]).statistic) if different else None,
        "with_margin": float(spearmanr(values, [margins[i] for i in read]).statistic) if different else None,
        **judge.metrics(),
    }


def ranked(judge: JudgeReward, groups: list[list[Dialogue]]) -> dict[str, Any]:
    """What `mode: rank` says of each prompt's replies as they are, and in the opposite order."""
    kept, pairs, first, last, read, chance = 0, 0, 0, 0, 0, 0.0
    for group in groups:
        if len(group) < 2:
            continue
        rankings = []
        for order in (list(range(len(group))), list(range(len(group)))[::-1]):
            question = judge.question([group[i] for i in order], ranks=True)
            answer = judge.ask(question, judge.retries)
            if not isinstance(answer.score, list):
                continue
            read += 1
            chance += 1 / len(group)
            first, last = first + (answer.score[0] == 1), last + (answer.score[-1] == 1)
            rankings.append([answer.score[order.index(i)] for i in range(len(group))])
        if len(rankings) == 2:
            one, other = rankings
            some = [(i, j) for i in range(len(group)) for j in range(i)]
            kept += sum((one[i] > one[j]) == (other[i] > other[j]) for i, j in some)
            pairs += len(some)
    return {
        "requests": 2 * sum(len(group) > 1 for group in groups),
        "with_ranking": read,
        "keeps_order": kept / pairs if pairs else None,
        "first_is_best": first / read if read else None,
        "last_is_best": last / read if read else None,
        "by_chance": chance / read if read else None,
    }


main = partial(run_command, JudgeOptions, run)

if __name__ == "__main__":
    raise SystemExit(main())
