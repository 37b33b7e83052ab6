"""First lines of conversations, answered by each model:  python -m experiments.dailydialog.pretrained.chat PLAN

Of a reply that is a training utterance, or shares many words in a row with one, the number of that utterance is noted: the page
prints it in place of the reply, which the data's licence does not allow to publish.
"""

import json
import random
import sys
from itertools import chain
from pathlib import Path

from rlhf_dialog.atomic_files import replace_json

WHOLE, IN_A_ROW = 6, 8  # words
TEMPERATURE = 0.7
Words = tuple[str, ...]


def words_of(text: str) -> Words:
    """Words in lower case, without punctuation."""
    kept = ("".join(filter(str.isalnum, word)) for word in text.lower().split())
    return tuple(word for word in kept if word)


def in_a_row(words: Words) -> list[Words]:
    return [words[i : i + IN_A_ROW] for i in range(len(words) - IN_A_ROW + 1)]


class Utterances:
    """The training utterances by their words, and by the words that they have in a row; the first one counts."""

    def __init__(self, utterances: list[str]) -> None:
        self.numbers: dict[Words, int] = {}
        for number, utterance in enumerate(utterances):
            words = words_of(utterance)
            for some in ([words] if len(words) >= WHOLE else []) + in_a_row(words):
                self.numbers.setdefault(some, number)

    def number_of(self, reply: str) -> int | None:
        """The utterance that the reply repeats; None where it repeats none."""
        words = words_of(reply)
        parts = ([words] if len(words) >= WHOLE else []) + in_a_row(words)
        return next((self.numbers[some] for some in parts if some in self.numbers), None)


def main(path: Path) -> None:
    """Write each line with the replies to it, and the utterance that each repeats."""
    from experiments.dailydialog.rows import settings_of
    from rlhf_dialog.config.loading import load_config
    from rlhf_dialog.data.dialogue import Dialogue
    from rlhf_dialog.data.sources import load_records
    from rlhf_dialog.evaluation.replies import generate_replies
    from rlhf_dialog.models.chat_agent import ChatAgent
    from rlhf_dialog.models.generation import at_temperature

    plan = json.loads(path.read_text(encoding="utf-8"))
    first = [one.turns[0] for one in load_records(plan["chitchat"], "test")]
    lines = random.Random(plan["seed"]).sample(first, min(plan["lines"], len(first)))
    utterances = Utterances(list(chain.from_iterable(one.turns for one in load_records(plan["data"], "train"))))
    settings, replies = settings_of(load_config(plan["config"])), {}
    for title, folder in plan["models"].items():
        agent = ChatAgent.load(folder, settings=settings)
        sampling = at_temperature(TEMPERATURE, agent.sampling)
        replies[title] = generate_replies(agent, [Dialogue([line]) for line in lines], sampling, plan["seed"]).dialogues
        print(f"{len(replies)} of {len(plan['models'])} models", flush=True)
    rows = []
    for number, line in enumerate(lines):
        said = {title: some[number].response for title, some in replies.items()}
        repeated = {title: utterances.number_of(text) for title, text in said.items()}
        rows.append({"line": line, "replies": said, "repeats": repeated})
    replace_json(Path(plan["output"]), rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
