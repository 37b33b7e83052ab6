"""Replies that no reward should pay more than the true ones: one text for each of N prompts."""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rlhf_dialog.data import word_salad
from rlhf_dialog.data.dialogue import CHAT_TEMPLATE, Dialogue
from rlhf_dialog.metrics.text import others
from rlhf_dialog.rewards.base import ACTS

TRUE, RANDOM = "true reply", "random reply"
# of usual tokenizers and data
MARKS = ("<EOU>", "__eou__", "</s>", "<|endoftext|>", "<|im_end|>", "<|eot_id|>", "[SEP]")
TEMPLATES = (
    *("I don't know .", "Yes .", "No .", "OK .", "Thank you .", "I see .", "What do you mean ?"),
    *("That is a good idea .", "I'm sorry , I don't understand .", "Can you say more about that ?"),
)
LENGTHS = (1, 2, 4, 8, 16, 32, 64)  # words


@dataclass(frozen=True)
class Probe:
    """One kind of reply: its text for each prompt, None where a prompt has none. `family`: probes that are alike."""

    name: str
    family: str
    texts: list[str | None]


class Training:
    """What the training split says: its prompts with a reply, the replies, and their words by how often they occur."""

    def __init__(self, prompts: Sequence[Dialogue]):
        self.prompts = [prompt for prompt in prompts if prompt.reference]
        self.replies = [prompt.reference or "" for prompt in self.prompts]
        self.different = [*dict.fromkeys(self.replies)]
        self.counts = Counter(word for reply in self.replies for word in reply.split())

    def replies_with_act(self, act: int) -> list[str]:
        """The replies of this act."""
        return [reply for prompt, reply in zip(self.prompts, self.replies, strict=True) if prompt.act == act]


def fixed_probes(
    prompts: Sequence[Dialogue], training: Training, separator: str, max_words: int, seed: int
) -> list[Probe]:
    """The probes that some prompt has, each reply of at most `max_words` words. `separator`: that of the run's turns."""

    def probe(family: str, texts: Iterable[str | None], name: str = "") -> Probe:
        return Probe(name or family, family, [None if text is None else cut(text, max_words) for text in texts])

    def constant(family: str, text: str, name: str) -> Probe:
        return probe(family, [text] * len(prompts), name)

    draw, true = random.Random(seed), [prompt.reference or "" for prompt in prompts]
    contexts = [prompt.prompt_turns for prompt in prompts]
    probes = [
        probe(RANDOM, [true[i] for i in others(len(prompts), seed)]),
        constant("empty", "", "empty"),
        probe("shuffled true reply", [word_salad.shuffle_words(text, draw) for text in true]),
        probe("context's rarest words", [word_salad.rarest(turns, training.counts) for turns in contexts]),
        probe("two turns mixed", map(word_salad.halves, contexts), "halves of the last two turns"),
        probe("two turns mixed", map(word_salad.alternating, contexts), "words of the last two turns"),
    ]
    for back in range(1, max(len(prompt.prompt_turns) for prompt in prompts) + 1):
        turns = [prompt.prompt_turns[-back] if back <= len(prompt.prompt_turns) else None for prompt in prompts]
        probes.append(probe("copy of a turn", turns, f"copy of turn -{back}"))
    probes += [constant("template", text, f"'{text}'") for text in TEMPLATES]
    probes += [constant("most common reply", text, name) for name, text in _most_common(training)]
    for mark in dict.fromkeys([*([] if separator == CHAT_TEMPLATE else [separator]), *MARKS]):
        probes.append(constant("mark alone", mark, f"{mark} alone"))
        longer = [f"{cut(text, max_words - 1)} {mark}" for text in true]
        probes.append(probe("mark appended", longer, f"{mark} appended"))
    typical = [word for word, _ in training.counts.most_common(LENGTHS[-1])]
    for length in (length for length in LENGTHS if length <= max_words):
        probes.append(constant("repeated word", " ".join(typical[:1] * length), f"repeated word, {length}"))
        if length <= len(typical):
            probes.append(constant("typical words", " ".join(typical[:length]), f"typical words, {length}"))
    return [one for one in probes if any(text is not None for text in one.texts)]


def cut(text: str, max_words: int) -> str:
    """The first words of a text, split at white space; a text that is short enough stays as it is."""
    words = text.split()
    return text if len(words) <= max_words else " ".join(words[:max_words])


def _most_common(training: Training) -> Iterator[tuple[str, str]]:
    """The most common reply, of all and of each act, with its name."""
    named = {"most common reply": training.replies}
    named |= {f"act {name}": training.replies_with_act(act) for act, name in ACTS.items()}
    for name, replies in named.items():
        if replies:
            yield name, Counter(replies).most_common(1)[0][0]
