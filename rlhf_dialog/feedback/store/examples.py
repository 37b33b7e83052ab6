"""What people said of the answers, as examples to learn from and to be measured with. Text only.

A thumb or a score of 4 or 5 labels an answer liked, one of 1 or 2 disliked; an edit is a pair (its text over the answer), and so
is a choice. The dialogues that are held out from birth are never trained on.
"""

import math
import random
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import groupby
from operator import itemgetter
from sqlite3 import Row
from typing import Any, NamedTuple

from rlhf_dialog.feedback.store.settings import BotSettings
from rlhf_dialog.feedback.store.store import CHANGES, COUNTING, HELDOUT, SAMPLES, Store, as_limit, check_origin
from rlhf_dialog.json_files import damage_as_user_error, parse_json

JUDGEMENTS = {"thumb": 0, "score": 3}  # a larger value is a liked answer
NO_TURNS: tuple[str, Iterator[Row]] = ("", iter(()))
LACKS_A_TURN = "ratings in dialogues that lack a turn"
STOPPED = "ratings of answers that were stopped before their end"
Prompt = tuple[str, ...]


class DialoguePrompt(NamedTuple):
    """What an answer was given to: all that was said before, oldest first, and the dialogue's own system message, if any."""

    turns: Prompt
    system: str | None


def describe_progress(num_ratings: int, num_heldout: int, settings: BotSettings) -> str:
    """How far a bot is that has too few held-out ratings to learn from."""
    return (
        f"{num_ratings} ratings so far, of which {num_heldout} are held out; learning begins with {settings.min_heldout} "
        f"held-out ratings (min_heldout), that is about {settings.min_heldout * HELDOUT} ratings"
    )


def _as_before(one: Any) -> str:
    """As `repr`, without the fields that older programs did not have, where they say nothing: a night goes on after an update."""
    later = {key for key in LATER if getattr(one, key) == one._field_defaults[key]}
    shown = ", ".join(f"{key}={value!r}" for key, value in one._asdict().items() if key not in later)
    return f"{type(one).__name__}({shown})"


LATER = ("system", "after_copies")


class RatedAnswer(NamedTuple):
    prompt_turns: Prompt  # all that was said before, oldest first
    response: str
    liked: bool
    kind: str  # thumb, score
    person: str
    dialogue: str
    event: int
    ids: tuple[int, ...] | None = None  # the tokens as they were sampled; None of an import
    heldout: bool = False
    owner: str | None = None  # who began the dialogue, where it is another person, or one of several who share a person
    system: str | None = None  # the dialogue's own system message
    after_copies: bool = False  # whether turns before it were copied from a history, and not said in this dialogue

    def __repr__(self) -> str:
        return _as_before(self)


class AnswerPair(NamedTuple):
    """Two answers to one prompt, of which somebody preferred one; `ids` as in `RatedAnswer`, those of an edit's text are None."""

    prompt_turns: Prompt
    chosen: str
    rejected: str
    kind: str  # edit, choice
    person: str
    dialogue: str
    event: int
    chosen_ids: tuple[int, ...] | None = None
    rejected_ids: tuple[int, ...] | None = None
    heldout: bool = False
    owner: str | None = None
    system: str | None = None
    after_copies: bool = False

    def __repr__(self) -> str:
        return _as_before(self)


Example = RatedAnswer | AnswerPair


@dataclass(frozen=True)
class Examples:
    """Answers and pairs by event; `left_out`: how many events give no example, by the reason."""

    answers: list[RatedAnswer]
    pairs: list[AnswerPair]
    left_out: dict[str, int] = field(default_factory=dict)

    @property
    def all(self) -> list[Example]:
        return sorted([*self.answers, *self.pairs], key=lambda one: one.event)

    @property
    def num_after_copies(self) -> int:
        """How many have turns in their prompt that nobody said in that dialogue."""
        return sum(one.after_copies for one in self.all)

    @property
    def people(self) -> list[str]:
        """The hashes of those whose feedback is in it; samples are nobody's."""
        return sorted({one.person for one in self.all} - {SAMPLES})

    @property
    def concerned(self) -> list[str]:
        """The hashes of those whose feedback or dialogue is in it, and samples."""
        return sorted({one.person for one in self.all} | {one.owner for one in self.all if one.owner})

    def __len__(self) -> int:
        return len(self.answers) + len(self.pairs)


@dataclass(frozen=True)
class WeightedExamples(Examples):
    """With `weights` by event: 1, or less where one person would have more than the cap's share of the whole weight."""

    weights: dict[int, float] = field(default_factory=dict)

    @property
    def weight(self) -> float:
        """Of all together."""
        return total_weight(self.weights)

    def weights_of(self, examples: Iterable[Example]) -> list[float]:
        return [self.weights[one.event] for one in examples]


@dataclass(frozen=True)
class TrainingSet(WeightedExamples):
    """The examples of one night: `num_new` since the last one, the others are older ones again.

    `seen`: the events that the night has dealt with, trained on or left out.
    """

    num_new: int = 0
    seen: frozenset[int] = frozenset()


class HeldOut(WeightedExamples):
    """Everything held out."""


EVENTS = f"""SELECT dialogue, id, turn, kind, value, text, other, person, created, {COUNTING} AS counts
    FROM feedback WHERE id <= :upto ORDER BY dialogue, id"""
TURNS = """SELECT dialogue, id, position, text, created, {token_ids}, id IN (SELECT turn FROM stopped) AS is_stopped,
    id IN (SELECT turn FROM copies) AS is_copy FROM turns
    WHERE dialogue IN (SELECT dialogue FROM feedback WHERE id <= :upto) ORDER BY dialogue, position, id"""


DIALOGUES = """SELECT id, coalesce(hash, person) AS owner, heldout, text AS system FROM dialogues
    LEFT JOIN systems ON systems.dialogue = id LEFT JOIN users ON users.dialogue = id"""


def read_examples(store: Store, upto: int | None = None, with_ids: bool = True) -> Examples:
    """All labelled answers and pairs of the store as of the event `upto`; without ids where nothing is computed with them.

    One dialogue is in memory at a time. Raises UserError when the store cannot be read.
    """
    values, left_out, examples = {"upto": as_limit(upto)}, Counter[str](), list[Example]()
    columns = TURNS.format(token_ids="token_ids" if with_ids else "NULL AS token_ids")
    with store.reading():
        dialogues = {one["id"]: one for one in store.rows(DIALOGUES)}
        groups = groupby(store.each_row(columns, values), itemgetter(0))
        name, turns = next(groups, NO_TURNS)
        for dialogue, events in groupby(store.each_row(EVENTS, values), itemgetter(0)):
            has_turns = name == dialogue
            rated = _RatedDialogue(dialogues.get(dialogue), list(turns) if has_turns else [], list(events))
            for event in rated.events:
                found = rated.example(event) if event["counts"] else None
                if isinstance(found, str):
                    left_out[found] += 1
                elif found is not None:
                    examples.append(found)
            if has_turns:
                name, turns = next(groups, NO_TURNS)
    return Examples(*_split(examples), dict(left_out))


class _RatedDialogue:
    """A dialogue, or None where it is missing, with its turns by position and all events on it, of which some count."""

    def __init__(self, dialogue: Row | None, turns: Sequence[Row], events: Sequence[Row]):
        self.dialogue, self.turns, self.events = dialogue, turns, events
        _, ids, positions, texts, *_ = zip(*turns, strict=True) if turns else ((),) * 4
        self.by_id = dict(zip(ids, turns, strict=True))
        self.newest = {
            (person, turn): number
            for _, number, turn, kind, _, _, _, person, _, counts in events
            if counts and kind in JUDGEMENTS
        }
        in_order = positions == tuple(range(len(turns))) and ids == tuple(sorted(ids))
        is_plain = in_order and not any([event["kind"] in CHANGES for event in events])
        self.texts = texts if is_plain else ()  # nothing was replaced

    def example(self, event: Row) -> Example | str:
        """What an event that counts says of an answer, or why it says nothing to learn from."""
        _, number, turn, kind, value, text, other_id, person, _, _ = event
        if kind in JUDGEMENTS and self.newest[person, turn] != number:
            return "older judgements of the same answer"
        if kind == "dialogue_score":
            return "scores of a whole dialogue"
        answer, other = self.by_id.get(turn), self.by_id.get(other_id)
        if self.dialogue is None or answer is None or (kind == "choice" and other is None):
            return LACKS_A_TURN
        rated = (answer, other) if other else (answer,)
        if any(turn["is_stopped"] for turn in rated):
            return STOPPED
        if any(turn["is_copy"] for turn in rated):
            return "ratings of copied turns"
        position = answer["position"]
        prompt = self.texts[:position] or turns_before(self.turns, answer, self.events)
        if len(prompt) < position:
            return LACKS_A_TURN
        if kind == "score" and value == 3:
            return "scores of 3, which say neither"
        if not prompt:
            return "answers to nothing"
        name, owner, heldout, system = self.dialogue
        kind, person = sys.intern(kind), sys.intern(person)
        shared: dict[str, Any] = {
            "prompt_turns": prompt,
            "kind": kind,
            "person": person,
            "dialogue": name,
            "event": number,
            "heldout": bool(heldout),
            "owner": None if owner == person else sys.intern(owner),
            "system": system,
            "after_copies": any(turn["is_copy"] for turn in self.turns if turn["position"] < position),
        }
        if kind in JUDGEMENTS:
            liked = (value or 0) > JUDGEMENTS[kind]
            return RatedAnswer(response=answer["text"], liked=liked, ids=_ids(answer), **shared)
        chosen, chosen_ids = (answer["text"], _ids(answer)) if other else (text or "", None)
        rejected = other or answer
        if chosen.strip() == rejected["text"].strip():
            return "edits that change nothing"
        return AnswerPair(
            chosen=chosen,
            rejected=rejected["text"],
            chosen_ids=chosen_ids,
            rejected_ids=_ids(rejected),
            **shared,
        )


def _ids(turn: Row) -> tuple[int, ...] | None:
    if turn["token_ids"] is None:
        return None
    with damage_as_user_error(f"the store of feedback: turn {turn['id']} is damaged (", "); put a backup in its place"):
        token_ids = parse_json(turn["token_ids"])
        check_origin(token_ids)
    return tuple(token_ids) or None


def turns_before(turns: Sequence[Row], answer: Row, events: Sequence[Row]) -> Prompt:
    """What was said before an answer was given: of each earlier position the text that was written, chosen or edited last until
    then, and not taken back.

    `events`: the dialogue's by id, also those that no longer count. Empty where a turn is missing.
    """
    by_id = {turn["id"]: turn for turn in turns}
    until = [event for event in events if event["created"] <= answer["created"]]
    back = [event for event in until if event["kind"] == "withdrawn"]
    written = [(turn["created"], turn["position"], turn["text"]) for turn in turns if turn["id"] < answer["id"]]
    for event in until:
        turn = by_id.get(event["turn"])
        if event["kind"] in CHANGES and turn is not None and not any(_takes_back(one, event) for one in back):
            written.append((event["created"], turn["position"], event["text"] or turn["text"]))
    at = {place: text for _, place, text in sorted(written, key=itemgetter(0)) if place < answer["position"]}
    return tuple(at[place] for place in sorted(at)) if len(at) == answer["position"] else ()


def _takes_back(withdrawal: Row, event: Row) -> bool:
    """Whether an event was withdrawn by another one; as in `COUNTING`."""
    same = all(withdrawal[key] == event[key] for key in ("person", "turn"))
    is_later = withdrawal["id"] > event["id"] and withdrawal["text"] == event["kind"]
    return same and is_later and withdrawal["other"] in (None, event["other"])


ANSWERS = """SELECT id, turns.dialogue, systems.text FROM turns LEFT JOIN systems ON systems.dialogue = turns.dialogue
    WHERE speaker = 'agent' AND id <= ? AND id NOT IN (SELECT turn FROM copies UNION SELECT turn FROM stopped) ORDER BY id DESC"""


def newest_prompts(store: Store, count: int, context_size: int, last_turn: int | None = None) -> list[DialoguePrompt]:
    """The newest different prompts that an agent answered, up to the turn `last_turn`: newest first, each as it was then.

    Without answers that were stopped, and copied turns. Raises UserError when the store cannot be read.
    """
    prompts: dict[DialoguePrompt, None] = {}
    with store.reading():
        for number, dialogue, system in store.rows(ANSWERS, (as_limit(last_turn),)):
            turns = store.rows("SELECT * FROM turns WHERE dialogue = ? ORDER BY position, id", (dialogue,))
            answer = next(turn for turn in turns if turn["id"] == number)
            events = store.rows("SELECT * FROM feedback WHERE dialogue = ? ORDER BY id", (dialogue,))
            if prompt := turns_before(turns, answer, events):
                prompts.setdefault(DialoguePrompt(prompt[-context_size:], system))
            if len(prompts) == count:
                break
    return list(prompts)


def training_set(examples: Examples, settings: BotSettings, consumed: Iterable[int], seed: str) -> TrainingSet:
    """What a night learns from: all that is new, and older examples drawn again; empty when nothing is new.

    `consumed` are the events of earlier nights. Left out are held-out dialogues, repetitions, wrong lengths and disagreement.
    Nobody has more than the cap's share of the weight, and the older ones, drawn by `seed`, no more than `replay_share`.
    """
    eligible = [example for example in examples.all if not example.heldout]
    before = set(consumed)
    kept, left_out = select_measurable(eligible, settings)
    agreed = _keep_agreed(kept, settings.agreement)
    left_out["people do not agree (agreement)"] = len(kept) - len(agreed)
    new = [example for example in agreed if example.event not in before]
    older = [example for example in agreed if example.event in before]
    seen = frozenset(example.event for example in eligible) | before
    chosen = [*new, *_draw_older(new, older, settings, seed)] if new else []
    weights = person_weights(chosen, settings)
    return TrainingSet(*_split(chosen), {**examples.left_out, **+left_out}, weights, len(new), seen)


def _draw_older(new: list[Example], older: list[Example], settings: BotSettings, seed: str) -> list[Example]:
    """As many of the older examples as have `replay_share` of the weight of all, or all of them."""

    def weighs_more(number: int) -> bool:
        drawn = random.Random(seed).sample(older, number)
        weights = person_weights([*new, *drawn], settings)
        of_older = total_weight({one.event: weights[one.event] for one in drawn})
        return of_older > settings.replay_share * total_weight(weights) + 1e-9

    number = bisect_left(range(1, len(older) + 1), True, key=weighs_more)
    return random.Random(seed).sample(older, number)


def person_weights(examples: Sequence[Example], settings: BotSettings) -> dict[int, float]:
    """The weight of each example by its event: that of `cap_weights`; 1 of samples, which are in nobody's share."""
    counts = Counter(example.person for example in examples if example.person != SAMPLES)
    by_person = cap_weights(counts, settings.person_cap)
    return {example.event: float(by_person.get(example.person, 1)) for example in examples}


def total_weight(weights: dict[int, float]) -> float:
    """The sum, without what floats lose of a person's whole weight."""
    return round(math.fsum(weights.values()), 9)


def max_share(cap: float, num_people: int) -> Fraction:
    """The largest share of one person, exactly: the cap as it is written, or 1 / their number where that is more."""
    return max(Fraction(str(cap)), Fraction(1, max(num_people, 1)))


def cap_weights(counts: dict[str, int], cap: float) -> dict[str, Fraction]:
    """The weight of each person's every row: at most 1, and all that a person has is at most `max_share` of the whole weight.

    Those above the cap get the same total t: with m of them, t = share (m t + the rest).

    >>> [str(w) for w in cap_weights({"troll": 90, "a": 5, "b": 5, "c": 5}, 0.4).values()]
    ['1/9', '1', '1', '1']
    """
    share, num_rest = max_share(cap, len(counts)), sum(counts.values())
    total = Fraction(0)
    for number, person in enumerate(sorted(counts, key=lambda person: (-counts[person], person))):
        total = share * num_rest / (1 - share * number)
        if counts[person] <= total:
            break
        num_rest -= counts[person]
    return {person: min(Fraction(1), total / count) for person, count in counts.items()}


def heldout_set(examples: Examples, settings: BotSettings) -> HeldOut:
    """All held-out examples ever collected, without repetitions and wrong lengths, with the weights of their people."""
    kept, left_out = select_measurable([one for one in examples.all if one.heldout], settings)
    return HeldOut(*_split(kept), dict(left_out), person_weights(kept, settings))


def select_measurable(examples: Sequence[Example], settings: BotSettings) -> tuple[list[Example], Counter[str]]:
    """Without what one person said of the same answer to the same prompt before, and within the limits of length."""
    newest: dict[tuple[Any, ...], Example] = {}
    for one in examples:
        texts = (one.response,) if isinstance(one, RatedAnswer) else (*sorted((one.chosen, one.rejected)), one.kind)
        newest[(type(one).__name__, one.person, one.prompt_turns, one.system, *texts)] = one
    fitting = []
    for one in sorted(newest.values(), key=lambda one: one.event):
        texts = (one.response,) if isinstance(one, RatedAnswer) else (one.chosen, one.rejected)
        if all(settings.min_words <= len(text.split()) <= settings.max_words for text in texts):
            fitting.append(one)
    left_out = Counter({"repetitions": len(examples) - len(newest)})
    left_out["too short or too long (min_words, max_words)"] = len(newest) - len(fitting)
    return fitting, +left_out


def _keep_agreed(examples: list[Example], agreement: float) -> list[Example]:
    """Answers that several people judged: only the judgements of the majority, and none where it is too small."""
    votes = Counter(
        (one.prompt_turns, one.system, one.response, one.liked) for one in examples if isinstance(one, RatedAnswer)
    )
    kept: list[Example] = []
    for example in examples:
        if isinstance(example, RatedAnswer):
            answer = (example.prompt_turns, example.system, example.response)
            yes, no = (votes[*answer, liked] for liked in (True, False))
            share = Fraction(yes if example.liked else no, yes + no)
            if yes + no > 1 and not (share > Fraction(1, 2) and share >= Fraction(str(agreement))):
                continue
        kept.append(example)
    return kept


def liked_examples(examples: Examples) -> list[Example]:
    """The answers that people liked, and what they wrote or chose, by event."""
    return [one for one in examples.all if not isinstance(one, RatedAnswer) or one.liked]


def _split(examples: Iterable[Example]) -> tuple[list[RatedAnswer], list[AnswerPair]]:
    ordered = sorted(examples, key=lambda one: one.event)
    pairs = [example for example in ordered if isinstance(example, AnswerPair)]
    return [example for example in ordered if isinstance(example, RatedAnswer)], pairs


def format_counts(left_out: dict[str, int]) -> str:
    """`12 repetitions, 3 scores of 3, ...`, the most frequent reason first.

    >>> format_counts({"repetitions": 2, "edits that change nothing": 3})
    '3 edits that change nothing, 2 repetitions'
    """
    return ", ".join(f"{count} {reason}" for reason, count in sorted(left_out.items(), key=lambda item: -item[1]))
