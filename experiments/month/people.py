"""Scripted people, for a simulation: they talk to a bot, and say of its answers what their taste and their errors make of them.

They write into the store as a page does. The same seed and the same bot give the same dialogues, under the same ids; what one
person does depends on nobody else.
"""

import hashlib
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from pydantic import Field, model_validator

from rlhf_dialog.config.settings import Settings
from rlhf_dialog.feedback.store.store import Rating, Store, TurnOrigin
from rlhf_dialog.models.generation import Reply, Responder

TROLL = "troll"
SOURCE = "simulation"
TRIES = 20  # replies of which an edit is the nearest to the turn before
Script = Sequence[str]  # the turns of a dialogue, of which people say the even ones


class Taste(Settings):
    """What people like of an answer"""

    matches: Literal["all", "any"] = Field("all", description="any: one of the keys that are set suffices")
    asks: bool | None = Field(None, description="true: ends with a question mark; false: does not; null: either")
    min_words: int | None = Field(None, ge=1, description="words of the shortest answer that is liked")
    max_words: int | None = Field(None, ge=1, description="words of the longest answer that is liked")
    says: str | None = Field(None, min_length=1, description="a word or words that it contains; case does not count")

    @model_validator(mode="after")
    def _together(self) -> "Taste":
        low, high = self.min_words, self.max_words
        if low is not None and high is not None and low > high:
            raise ValueError(f"min_words: found {low}, wanted at most max_words, which is {high}")
        return self

    def likes(self, answer: str) -> bool:
        """Whether an answer is liked, without errors.

        >>> Taste(asks=True, max_words=4).likes("For how long ?")
        True
        """
        num_words, padded = len(answer.split()), f" {' '.join(answer.lower().split())} "
        low, high = self.min_words, self.max_words
        holds = []
        if low is not None or high is not None:
            holds.append((low or 1) <= num_words and (high is None or num_words <= high))
        if self.asks is not None:
            holds.append(answer.rstrip().endswith("?") == self.asks)
        if self.says is not None:
            holds.append(f" {self.says.lower()} " in padded)
        return num_words > 0 and (not holds or (all if self.matches == "all" else any)(holds))


class PeopleKeys(Settings):
    """People"""

    taste: Taste = Field(default_factory=Taste, description="what everybody but the troll likes")
    num_people: int = Field(12, ge=1, le=10**4, description="people who talk to the bot, besides the troll")
    dialogues_per_night: int = Field(
        50, ge=1, le=10**6, description="dialogues before each night; some people talk more"
    )
    max_exchanges: int = Field(3, ge=1, le=100, description="largest number of answers in a dialogue")
    feedback_share: float = Field(0.8, ge=0, le=1, description="share of the answers of which people say something")
    score_share: float = Field(
        0.15, ge=0, le=1, description="share of the feedback that is a score; the rest are thumbs"
    )
    edit_share: float = Field(0.1, ge=0, le=1, description="share that edits the answer, if it is not liked")
    choice_share: float = Field(
        0.15, ge=0, le=1, description="share that asks again and chooses, if one of the two is liked"
    )
    noise: float = Field(0.2, ge=0, le=1, description="share of the thumbs, scores and choices that are wrong")
    troll_share: float = Field(
        0.4, ge=0, lt=1, description="share of all feedback that one troll sends; 0: there is none"
    )
    troll_labels: Literal["inverted", "random"] = Field("inverted", description="what the troll says of an answer")

    @model_validator(mode="after")
    def _shares(self) -> "PeopleKeys":
        if self.score_share + self.edit_share + self.choice_share > 1:
            raise ValueError("score_share, edit_share and choice_share: wanted a sum of at most 1")
        return self


@dataclass
class Visit:
    """One dialogue of one person, while it lasts."""

    person: str
    dialogue: str  # its id
    says: list[str]  # what this person will say, one turn for each answer
    draw: random.Random
    turns: list[str] = field(default_factory=list)
    budget: int | None = None  # feedback that is left to give; None: no limit


@dataclass(frozen=True)
class Host:
    """Who answers: the agent of a version, given the last `context_size` turns."""

    agent: Responder
    version: str
    context_size: int

    def answers(self, visits: Sequence[Visit], seed: str) -> list[tuple[Reply, list[float]]]:
        """One answer to each visit's turns, in one batch, with the log-probabilities of its tokens."""
        sampling, device = self.agent.sampling, self.agent.policy.lm.device
        numbers = torch.Generator().manual_seed(number_of(seed))
        uniform = torch.rand(len(visits), sampling.max_new_tokens, dtype=torch.float64, generator=numbers).to(device)
        prompts = self.agent.encode([visit.turns[-self.context_size :] for visit in visits])
        responses = self.agent.generate(prompts, uniform)
        assert responses.logprobs is not None
        logprobs, mask = responses.logprobs.cpu(), responses.tokens.response_mask
        found = [row[counts].tolist() for row, counts in zip(logprobs, mask, strict=True)]
        return list(zip(self.agent.read(responses), found, strict=True))

    def sampling(self) -> dict[str, float]:
        """How its tokens are sampled, for the store."""
        sampling = self.agent.sampling
        return {name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p", "max_new_tokens")}


class People:
    """Everybody who talks to one bot. `scripts` are dialogues that they follow: they say the even turns, from the first on."""

    def __init__(self, keys: PeopleKeys, scripts: Sequence[Script], seed: int):
        self.keys, self.taste, self.seed = keys, keys.taste, seed
        self.scripts = [script for script in scripts if len(script) > 1]
        replies = sorted({turn for script in self.scripts for turn in script[1:]})
        self.replies = {liked: [one for one in replies if self.taste.likes(one) == liked] for liked in (True, False)}
        self.names = [f"person {number}" for number in range(1, keys.num_people + 1)]

    def talk(self, store: Store, host: Host, night: int) -> int:
        """The dialogues before a night, with their feedback; returns the number of events stored."""
        before = store.last_event()
        self._meet(store, host, f"{self.seed} {night} people", self._visits(night))
        if self.keys.troll_share:
            self._troll(store, host, night)
        return store.last_event() - before

    def _visits(self, night: int) -> list[Visit]:
        draw = random.Random(f"{self.seed} {night}")
        activity = [1 / math.sqrt(number) for number in range(1, len(self.names) + 1)]
        names = draw.choices(self.names, activity, k=self.keys.dialogues_per_night)
        return [self._visit(name, night, number) for number, name in enumerate(names)]

    def _visit(self, name: str, night: int, number: int, budget: int | None = None) -> Visit:
        key = f"{self.seed} {night} {name} {number}"
        draw = random.Random(key)
        script = draw.choice(self.scripts)
        count = draw.randint(1, self.keys.max_exchanges)
        return Visit(name, hashlib.sha256(key.encode()).hexdigest()[:32], list(script[::2][:count]), draw, [], budget)

    def _troll(self, store: Store, host: Host, night: int) -> None:
        """The troll talks until exactly the share of all feedback is the troll's."""
        own, number = store.hash_person(TROLL), 0
        while True:
            events = store.feedback(newest=False)
            sent = sum(event.person == own for event in events)
            missing = round((len(events) - sent) * self.keys.troll_share / (1 - self.keys.troll_share)) - sent
            if missing <= 0:
                return
            each, rest = divmod(missing, count := math.ceil(missing / self.keys.max_exchanges))
            visits = [self._visit(TROLL, night, number + i, each + (i < rest)) for i in range(count)]
            self._meet(store, host, f"{self.seed} {night} troll {number}", visits)
            number += count

    def _meet(self, store: Store, host: Host, seed: str, visits: list[Visit]) -> None:
        """The visits from their first to their last turn; all that are at the same turn are answered in one batch."""
        for visit in visits:
            store.begin(visit.person, SOURCE, visit.dialogue)
        while visits := [visit for visit in visits if visit.says and visit.budget != 0]:
            seed += "."
            for visit in visits:
                visit.turns.append(visit.says.pop(0))
                store.add_turn(visit.dialogue, len(visit.turns) - 1, "user", visit.turns[-1])
            kinds = [self._kind(visit) for visit in visits]
            answers = _answered(store, host, visits, seed)
            asked_again = [visit for visit, kind in zip(visits, kinds, strict=True) if kind == "choice"]
            others = iter(_answered(store, host, asked_again, f"{seed} again"))
            for visit, kind, answer in zip(visits, kinds, answers, strict=True):
                other = next(others) if kind == "choice" else None
                visit.turns.append(self._judged(store, visit, kind, answer, other).text)

    def _kind(self, visit: Visit) -> str | None:
        """What the person will do with the answer; None: nothing."""
        keys = self.keys
        if visit.budget is None and visit.draw.random() >= keys.feedback_share:
            return None
        shares = {"score": keys.score_share, "edit": keys.edit_share, "choice": keys.choice_share}
        names = ["thumb", *shares]
        return visit.draw.choices(names, [1 - sum(shares.values()), *shares.values()])[0]

    def _judged(self, store: Store, visit: Visit, kind: str | None, answer: "Said", other: "Said | None") -> "Said":
        """Store what the person says of an answer; returns the answer with which the dialogue goes on."""
        if kind is None:
            return answer
        kept, likes, right = other or answer, self.taste.likes, self._is_right(visit)
        row: dict[str, Any] = {"kind": "thumb", "turn": kept.turn, "value": 1 if likes(kept.text) == right else -1}
        if other is not None and likes(other.text) != likes(answer.text):
            kept, left = (other, answer) if likes(other.text) == right else (answer, other)
            row = {"kind": "choice", "turn": kept.turn, "other": left.turn}
        elif kind == "score":
            row = {
                "kind": "score",
                "turn": kept.turn,
                "value": visit.draw.choice((4, 5) if row["value"] > 0 else (1, 2)),
            }
        elif kind == "edit" and (text := self._better(visit, kept.text)):
            row = {"kind": "edit", "turn": kept.turn, "text": text}
        store.add_feedback(visit.dialogue, visit.person, Rating(**row))
        visit.budget = None if visit.budget is None else visit.budget - 1
        return kept

    def _is_right(self, visit: Visit) -> bool:
        """Whether what is said now of an answer is right."""
        if visit.person != TROLL:
            return visit.draw.random() >= self.keys.noise
        return self.keys.troll_labels == "random" and visit.draw.random() < 0.5

    def _better(self, visit: Visit, answer: str) -> str | None:
        """The reply that an edit puts in place of an answer that this person does not want; None: nothing to put there.

        It is a reply of the scripts that repeats most words of the last turn, of a few that are drawn.
        """
        wanted = visit.person != TROLL or (self.keys.troll_labels == "random" and visit.draw.random() < 0.5)
        if self.taste.likes(answer) == wanted or not (found := self.replies[wanted]):
            return None
        last = set(visit.turns[-1].lower().split())
        drawn = visit.draw.choices(found, k=TRIES)
        return max(drawn, key=lambda reply: len(last & set(reply.lower().split())) / len(reply.split()))


@dataclass(frozen=True)
class Said:
    """A stored answer."""

    turn: int
    text: str


def _answered(store: Store, host: Host, visits: Sequence[Visit], seed: str) -> list[Said]:
    """One answer to each visit, stored."""
    sampling = host.sampling()
    found = []
    answers = host.answers(visits, seed) if visits else []
    for visit, (reply, logprobs) in zip(visits, answers, strict=True):
        turn = store.add_turn(
            visit.dialogue,
            len(visit.turns),
            "agent",
            reply.text,
            TurnOrigin(reply.ids, logprobs, sampling, host.version),
        )
        found.append(Said(turn, reply.text))
    return found


def number_of(text: str) -> int:
    """A number from a text, for generators that are seeded with numbers."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


def liked_share(answers: Sequence[str], taste: Taste) -> float:
    """The share of the answers that the taste likes, without errors."""
    return sum(map(taste.likes, answers)) / len(answers)
