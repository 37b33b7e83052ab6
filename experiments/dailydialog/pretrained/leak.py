"""Has the start seen the data before?  python -m experiments.dailydialog.pretrained.leak PLAN

The last reply of test dialogues in nats a word under the start, before any fine-tuning: after its own turns, and after the same
turns in another order; beside them the last replies of other people's conversations. A model that has learned a dialogue by heart
finds its replies much likelier in their order, and its most likely continuation is the reference.
"""

import json
import random
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from rlhf_dialog.atomic_files import replace_json
from rlhf_dialog.data.dialogue import Dialogue

BATCH = 16


def last_replies(prompts: Iterable[Dialogue], count: int, seed: int) -> list[Dialogue]:
    """The last prompt of each dialogue with a turn before its last one, at most `count`, drawn by the seed."""
    last = {one.meta["dialogue"]: one for one in prompts if len(one.prompt_turns) > 1}
    chosen = random.Random(seed).sample(sorted(last), min(count, len(last)))
    return [last[number] for number in chosen]


def shuffled(prompt: Dialogue, draw: random.Random) -> Dialogue:
    """The same turns before the same reply, in another order."""
    turns = list(prompt.prompt_turns)
    while turns == prompt.prompt_turns and len(set(turns)) > 1:
        draw.shuffle(turns)
    return replace(prompt, prompt_turns=turns)


def main(path: Path) -> None:
    """Write nats and words of every reply, and the share of greedy continuations that are the reference."""
    from rlhf_dialog.data.prompts import PromptRules
    from rlhf_dialog.evaluation.replies import generate_replies, reference_nll
    from rlhf_dialog.models.generation import at_temperature
    from rlhf_dialog.rewards.likelihood import load_responder

    plan = json.loads(path.read_text(encoding="utf-8"))
    start, draw = load_responder(plan["model"], None), random.Random(plan["seed"])
    sets, size = {}, plan["context_size"]
    for name, data in (("in order", plan["data"]), ("chitchat", plan["chitchat"])):
        sets[name] = last_replies(
            PromptRules(context_size=size, turn_separator=None).load(data, "test"), plan["dialogues"], plan["seed"]
        )
    sets["shuffled"] = [shuffled(one, draw) for one in sets["in order"]]
    found = {}
    for name, prompts in sets.items():
        nats = reference_nll(start, prompts, BATCH)[:, 0].tolist()
        found[name] = {"nats": nats, "words": [len((one.reference or "").split()) + 1 for one in prompts]}
        print(f"{len(found)} of {len(sets)} sets read", flush=True)
    sampling = replace(at_temperature(0, start.sampling), max_new_tokens=plan["max_new_tokens"])
    said = generate_replies(start, sets["in order"], sampling, 0, BATCH).dialogues
    same = [one.response.lower().split() == (one.reference or "").lower().split() for one in said]
    replace_json(Path(plan["output"]), {"sets": found, "equal": sum(same), "continued": len(same)})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
