"""Write dialogues between the handcrafted policy and simulated guests of a restaurant guide, in words:

python scripts/write_restaurant.py --output runs/restaurant_data

Each row is one reply of the policy with all turns before it, the lines of the data base included: a JSON Lines file for each
split. The training split also has --lessons: replies of the random policy, as far as they give values: a model learns from
them to say what the line of the data base holds, and not when. No network is needed, and the same seed gives the same dialogues.
"""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from rlhf_dialog.atomic_files import replace_text
from rlhf_dialog.commands.command_line import check_seed, new_folder
from rlhf_dialog.commands.options import Options, option, run_command
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.replies import progress
from rlhf_dialog.task_oriented.policies.base import PolicySpec
from rlhf_dialog.task_oriented.policies.handcrafted import Handcrafted, RandomPolicy
from rlhf_dialog.task_oriented.policies.sampling.in_words import PolicyInWords

FIRST_SEED = {"train": 0, "validation": 2**24}  # of the dialogues of a split, for seed 0
LESSONS_AFTER = 2**23
SEEDS_APART = 2**25


def replies(system: PolicyInWords, seeds: range) -> Iterator[dict[str, object]]:
    """One row for each reply of the system in these dialogues."""
    for seed in progress(seeds, "talking"):
        turns, ended = [system.begin(seed)], False
        while not ended:
            reply = system.reply()
            yield {"prompt": list(turns), "reference": reply, "dialogue": seed}
            user_turn, _, terminated, truncated, _ = system.environment.step(reply)
            turns += [reply, user_turn]
            ended = terminated or truncated


class WriteRestaurantOptions(Options):
    description = __doc__
    output: Path = option("default: runs/restaurant_data", Path("runs/restaurant_data"))
    dialogues: int = option("training dialogues; a tenth of it for validation; default: 100", 100)
    lessons: int = option("dialogues of the random policy, for replies that give values; default: 4000", 4000)
    domain: str = option("name or path of a domain; default: restaurant", "restaurant")
    varied: bool = option("draw among several sentences for an act, in place of always the same one")
    line_length: int = option("letters of the line [db] at most, as in environment.args; default: 160", 160)
    seed: int = option("another number gives other dialogues; default: 0", 0)


def run(options: WriteRestaurantOptions) -> None:
    check_seed(options.seed)
    for name, least in (("dialogues", 1), ("lessons", 0)):
        if getattr(options, name) < least:
            raise UserError(f"--{name}: found {getattr(options, name)}, wanted {least} or more")
    from rlhf_dialog.task_oriented.world.restaurant import restaurant

    counts = {"train": options.dialogues, "validation": max(options.dialogues // 10, 1)}
    environment = restaurant(options.domain, line_length=options.line_length)
    domain = environment.domain
    rules = PolicyInWords(environment, Handcrafted(domain), options.varied)
    random = PolicyInWords(environment, RandomPolicy(PolicySpec(0, 0, domain=domain)), options.varied)
    with new_folder(options.output) as folder:
        for split, count in counts.items():
            first = FIRST_SEED[split] + options.seed * SEEDS_APART
            rows = list(replies(rules, range(first, first + count)))
            summary = f"{len(rows)} replies of {count} dialogues"
            if split == "train" and options.lessons:
                first += LESSONS_AFTER
                said = replies(random, range(first, first + options.lessons))
                lessons = [
                    x for x in said if any(act.intent == "inform" for act in environment.nlu(str(x["reference"])))
                ]
                rows += lessons
                summary += f", and {len(lessons)} that give values"
            replace_text(folder / f"{split}.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))
            print(f"{options.output / split}.jsonl: {summary}")


main = partial(run_command, WriteRestaurantOptions, run)  # the command line; returns the exit code
