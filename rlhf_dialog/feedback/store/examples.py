"""What people said of the answers, as examples to learn from and to be measured with. Text only.

A thumb or a score of 4 or 5 labels an answer liked, one of 1 or 2 disliked; an edit is a pair (its text over the answer), and so
is a choice. The dialogues that are held out from birth are never trained on.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from rlhf_dialog.feedback.store.settings import BotSettings
from rlhf_dialog.feedback.store.store import HELDOUT, SAMPLES, Event, Store, StoredDialogue, StoredTurn, counting

LIKED, DISLIKED = (4, 5), (1, 2)
ABOVE = "above one person's share (person_cap)"
Prompt = tuple[str, ...]


def needed_ratings(settings: BotSettings) -> int:
    """About how many ratings, one a dialogue, give `min_heldout` held-out ones."""
    return settings.min_heldout * HELDOUT


def describe_progress(num_ratings: int, num_heldout: int, settings: BotSettings) -> str:
    """`12 of about 150 ratings: ...`, for a bot that has too few held-out ones to learn from."""
    return (
        f"{num_ratings} of about {needed_ratings(settings)} ratings: one dialogue of {HELDOUT} is held out, and learning begins "
        f"with {settings.min_heldout} held-out ratings (min_heldout; {num_heldout} now)"
    )


def short_count(store: Store, settings: BotSettings) -> str:
    """`12 of about 150 ratings before it can learn`; empty when there are enough.

    Raises UserError when the store cannot be read.
    """
    if store.last_event() >= 10 * needed_ratings(settings):  # so many need not be read
        return ""
    examples = read_examples(store)
    if len(heldout_set(examples, settings)) >= settings.min_heldout:
        return ""
    return f"{len(examples)} of about {needed_ratings(settings)} ratings before it can learn"


@dataclass(frozen=True)
class RatedAnswer:
    """An answer that somebody liked or disliked.

    >>> Answer(("Is it far ?",), "Two streets .", True, "thumb", "0a1b2c3d4e5f6071", "3f...", 12).liked
    True
    """

    prompt_turns: Prompt  # all that was said before, oldest first
    response: str
    liked: bool
    kind: str  # thumb, score
    person: str
    dialogue: str
    event: int
    ids: tuple[int, ...] | None = None  # the tokens as they were sampled; None of an import
    heldout: bool = False
    owner: str | None = None  # who began the dialogue, where it is another person


@dataclass(frozen=True)
class AnswerPair:
    """Two answers to one prompt, of which somebody preferred one; `ids` as in `Answer`, those of an edit's text are None."""

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


Example = RatedAnswer | AnswerPair


@dataclass(frozen=True)
class Examples:
    """Answers and pairs by event; `left_out`: how many events give no example, by the reason."""

    answers: list[RatedAnswer]
    pairs: list[AnswerPair]
    left_out: dict[str, int] = field(default_factory=dict)

    @property
    def all(self) -> list[Example]:
        """Answers and pairs, by event."""
        return sorted([*self.answers, *self.pairs], key=lambda one: one.event)

    def __len__(self) -> int:
        return len(self.answers) + len(self.pairs)


@dataclass(frozen=True)
class TrainingSet(Examples):
    """The examples of one night: `num_new` since the last one, the others are older ones again.

    `seen`: the events that the night has dealt with, trained on or left out.
    """

    num_new: int = 0
    seen: frozenset[int] = frozenset()

    @property
    def people(self) -> list[str]:
        """The hashes of those whose feedback is in it; samples are nobody's."""
        return sorted({one.person for one in self.all} - {SAMPLES})

    @property
    def concerned(self) -> list[str]:
        """The hashes of those whose feedback or dialogue is in it, and samples."""
        return sorted({one.person for one in self.all} | {one.owner for one in self.all if one.owner})


@dataclass(frozen=True)
class HeldOut(Examples):
    """Everything held out; `weights` by event: 1, or less where one person would have more than the cap's share of all."""

    weights: dict[int, float] = field(default_factory=dict)


def read_examples(store: Store, upto: int | None = None) -> Examples:
    """All labelled answers and pairs of the store as of the event `upto`. Raises UserError when it cannot be read."""
    with store.reading():
        return _read(store, upto)


def _read(store: Store, upto: int | None) -> Examples:
    stored = store.feedback(upto=upto, newest=False)
    events, left_out = _labels(counting(stored))
    changes = _by_dialogue(stored)
    dialogues = {dialogue.id: dialogue for dialogue in store.dialogues()}
    examples: list[Example] = []
    for dialogue, events_of_dialogue in _by_dialogue(events).items():
        turns = store.turns(dialogue)
        for event in events_of_dialogue:
            example = _example(event, turns, changes.get(dialogue, []), dialogues[dialogue])
            if not example.prompt_turns:  # of an import
                left_out["answers to nothing"] += 1
            elif isinstance(example, AnswerPair) and example.chosen.strip() == example.rejected.strip():
                left_out["edits that change nothing"] += 1
            else:
                examples.append(example)
    return Examples(*_split(examples), dict(+left_out))


def _labels(events: Sequence[Event]) -> tuple[list[Event], Counter[str]]:
    """The events that label an answer or prefer one; of a person's thumb and score on one answer the newer one."""
    newest = {(e.person, e.turn): e.id for e in events if e.kind in ("thumb", "score")}
    kept, left_out = [], Counter[str]()
    for event in events:
        if event.kind == "dialogue_score":
            left_out["scores of a whole dialogue"] += 1
        elif event.kind in ("thumb", "score") and newest[event.person, event.turn] != event.id:
            left_out["older judgements of the same answer"] += 1
        elif event.kind == "score" and event.value not in (*LIKED, *DISLIKED):
            left_out["scores of 3, which say neither"] += 1
        else:
            kept.append(event)
    return kept, left_out


def _example(event: Event, turns: Sequence[StoredTurn], changes: Sequence[Event], dialogue: StoredDialogue) -> Example:
    by_id = {turn.id: turn for turn in turns}
    answer = by_id[event.turn or 0]
    prompt = turns_before(turns, answer, changes)
    origin: dict[str, Any] = {"kind": event.kind, "person": event.person, "dialogue": event.dialogue, "event": event.id}
    origin |= {"heldout": dialogue.heldout, "owner": None if dialogue.person == event.person else dialogue.person}
    if event.kind in ("thumb", "score"):
        liked = (event.value or 0) > 0 if event.kind == "thumb" else event.value in LIKED
        return RatedAnswer(prompt, answer.text, liked, ids=_ids(answer), **origin)
    is_edit = event.kind == "edit"
    other = answer if is_edit else by_id[event.other or 0]
    return AnswerPair(
        prompt,
        chosen=event.text or "" if is_edit else answer.text,
        rejected=other.text,
        chosen_ids=None if is_edit else _ids(answer),
        rejected_ids=_ids(other),
        **origin,
    )


def turns_before(turns: Sequence[StoredTurn], answer: StoredTurn, changes: Sequence[Event]) -> Prompt:
    """The turns before `answer` as it was given: at each position what was written, chosen or edited last until then.

    `changes`: the choices and edits of the dialogue, also those that no longer count; other events change nothing.
    """
    by_id = {turn.id: turn for turn in turns}
    written = [(turn.created, turn.position, turn.text) for turn in turns if turn.id < answer.id]
    for event in (one for one in changes if one.kind in ("choice", "edit")):
        turn = by_id[event.turn or 0]
        if event.created <= answer.created:
            written.append((event.created, turn.position, event.text or turn.text))
    at = {place: text for _, place, text in sorted(written, key=lambda one: one[0]) if place < answer.position}
    return tuple(at[place] for place in sorted(at))


def newest_prompts(store: Store, count: int, context_size: int, last_turn: int | None = None) -> list[Prompt]:
    """The newest different prompts that an agent answered, up to the turn `last_turn`: newest first, each as it was then.

    Raises UserError when the store cannot be read.
    """
    prompts: dict[Prompt, None] = {}
    with store.reading():
        for number, dialogue in store.newest_answers(last_turn):
            turns = store.turns(dialogue)
            answer = next(turn for turn in turns if turn.id == number)
            if prompt := turns_before(turns, answer, store.feedback_on(dialogue, newest=False)):
                prompts.setdefault(prompt[-context_size:])
            if len(prompts) == count:
                break
    return list(prompts)


def _ids(turn: StoredTurn) -> tuple[int, ...] | None:
    return tuple(turn.token_ids) if turn.token_ids else None


def training_set(
    examples: Examples, settings: BotSettings, consumed: Iterable[int], draw: random.Random
) -> TrainingSet:
    """What a night learns from: all that is new, older examples drawn again, nobody above the cap.

    `consumed` are the events of earlier nights. Held-out dialogues are left out, and what `filtered` leaves out. Empty when
    nothing is new.
    """
    eligible = [example for example in examples.all if not example.heldout]
    before = set(consumed)
    kept, left_out = filter_examples(eligible, settings)
    new = [example for example in kept if example.event not in before]
    older = [example for example in kept if example.event in before]
    seen = frozenset(example.event for example in eligible) | before
    share = settings.replay_share  # of what older examples, without repetition, give together with the new ones
    replayed = draw.sample(older, min(len(older), int(share / (1 - share) * len(new))))
    chosen = _apply_cap([*new, *replayed], settings.person_cap, left_out)
    num_new = sum(example.event not in before for example in chosen)
    return TrainingSet(*_split(chosen if num_new else []), {**examples.left_out, **left_out}, num_new, seen)


def _apply_cap(examples: list[Example], cap: float, left_out: Counter[str]) -> list[Example]:
    """The newest examples of each person, up to the cap; all samples, which are in nobody's share."""
    allowed = cap_counts(Counter(example.person for example in examples if example.person != SAMPLES), cap)
    kept = []
    for example in sorted(examples, key=lambda example: example.event, reverse=True):
        if example.person == SAMPLES:
            kept.append(example)
        elif allowed[example.person] > 0:
            allowed[example.person] -= 1
            kept.append(example)
    if len(examples) > len(kept):
        left_out[ABOVE] += len(examples) - len(kept)
    return kept[::-1]


def max_share(cap: float, num_people: int) -> Fraction:
    """The largest share of one person, exactly: the cap as it is written, or 1 / their number where that is more."""
    return max(Fraction(str(cap)), Fraction(1, max(num_people, 1)))


def describe_small_group(cap: float, training: TrainingSet) -> list[str]:
    """What `learn` says where everybody has the same share, because they are few; nothing where that leaves nothing out."""
    count = len(training.people)
    if not (training.left_out.get(ABOVE) and Fraction(1, count or 1) >= Fraction(str(cap))):
        return []
    return [
        f"person_cap {cap:g}: {count} people have one share each, so whoever says least decides how much of the others is used; "
        "raise it for a small group"
    ]


def cap_counts(counts: dict[str, int], cap: float) -> dict[str, int]:
    """How many rows of each person are kept: as many as possible while nobody has more than `max_share` of all that are kept.

    >>> cap_counts({"troll": 90, "a": 5, "b": 5, "c": 5}, 0.4)
    {'troll': 10, 'a': 5, 'b': 5, 'c': 5}
    """
    share = max_share(cap, len(counts))
    for limit in range(max(counts.values(), default=0), 0, -1):
        kept = {person: min(count, limit) for person, count in counts.items()}
        if max(kept.values()) <= share * sum(kept.values()):
            return kept
    return dict.fromkeys(counts, 0)


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
    by_person = cap_weights(Counter(one.person for one in kept if one.person != SAMPLES), settings.person_cap)
    weights = {one.event: float(by_person.get(one.person, 1)) for one in kept}
    return HeldOut(*_split(kept), dict(left_out), weights)


def filter_examples(examples: Sequence[Example], settings: BotSettings) -> tuple[list[Example], Counter[str]]:
    """The examples to learn from, by event; and how many are left out, by the reason: repetitions, length, disagreement."""
    kept, left_out = select_measurable(examples, settings)
    agreed = _keep_agreed(kept, settings.agreement)
    left_out["people do not agree (agreement)"] += len(kept) - len(agreed)
    return agreed, +left_out


def select_measurable(examples: Sequence[Example], settings: BotSettings) -> tuple[list[Example], Counter[str]]:
    """Without repetitions, and within the limits of length."""
    kept, left_out = _distinct(examples)
    fitting = [one for one in kept if _fits(one, settings)]
    left_out["too short or too long (min_words, max_words)"] += len(kept) - len(fitting)
    return fitting, +left_out


def _distinct(examples: Sequence[Example]) -> tuple[list[Example], Counter[str]]:
    """Without what one person said of the same answer to the same prompt before; the newest counts."""
    newest = {_subject(one): one for one in examples}
    kept = sorted(newest.values(), key=lambda one: one.event)
    return kept, +Counter({"repetitions": len(examples) - len(kept)})


def _subject(one: Example) -> tuple[Any, ...]:
    texts = (one.response,) if isinstance(one, RatedAnswer) else (*sorted((one.chosen, one.rejected)), one.kind)
    return (type(one).__name__, one.person, one.prompt_turns, *texts)


def _fits(one: Example, settings: BotSettings) -> bool:
    texts = [one.response] if isinstance(one, RatedAnswer) else [one.chosen, one.rejected]
    return all(settings.min_words <= len(text.split()) <= settings.max_words for text in texts)


def _keep_agreed(examples: list[Example], agreement: float) -> list[Example]:
    """Answers that several people judged: only the judgements of the majority, and none where it is too small."""
    votes: dict[Any, Counter[bool]] = defaultdict(Counter)
    for example in examples:
        if isinstance(example, RatedAnswer):
            votes[example.prompt_turns, example.response][example.liked] += 1
    kept: list[Example] = []
    for example in examples:
        counts = votes[example.prompt_turns, example.response] if isinstance(example, RatedAnswer) else Counter[bool]()
        if counts.total() < 2:
            kept.append(example)
        elif isinstance(example, RatedAnswer):
            share = Fraction(counts[example.liked], counts.total())
            if share > Fraction(1, 2) and share >= Fraction(str(agreement)):
                kept.append(example)
    return kept


def _split(examples: Iterable[Example]) -> tuple[list[RatedAnswer], list[AnswerPair]]:
    """Answers and pairs, each by event."""
    ordered = sorted(examples, key=lambda one: one.event)
    pairs = [example for example in ordered if isinstance(example, AnswerPair)]
    return [example for example in ordered if isinstance(example, RatedAnswer)], pairs


def _by_dialogue(events: Iterable[Event]) -> dict[str, list[Event]]:
    groups: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        groups[event.dialogue].append(event)
    return groups


def format_counts(left_out: dict[str, int]) -> str:
    """`12 repetitions, 3 scores of 3, ...`, the most frequent reason first.

    >>> shown({"repetitions": 2, "edits that change nothing": 3})
    '3 edits that change nothing, 2 repetitions'
    """
    return ", ".join(f"{count} {reason}" for reason, count in sorted(left_out.items(), key=lambda item: -item[1]))
