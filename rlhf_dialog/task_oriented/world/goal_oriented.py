"""The goal-oriented environment in words: a user with a goal, a belief tracker, a verdict, and the words of both sides."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random, SystemRandom
from typing import Any, Protocol

from rlhf_dialog.environments.base import Step
from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains import NAME, UNKNOWN, Domain, load_domain
from rlhf_dialog.task_oriented.domains.domain import Entity
from rlhf_dialog.task_oriented.world.acts import Act, acts_of, text_of
from rlhf_dialog.task_oriented.world.error_channel import NULL, NBest
from rlhf_dialog.task_oriented.world.goals import Goal, draw_goal, goal_of
from rlhf_dialog.task_oriented.world.summary import summarise
from rlhf_dialog.task_oriented.world.tracker import Belief
from rlhf_dialog.task_oriented.world.users import User

MAX_TURNS = 25
TURN_REWARD, SUCCESS_REWARD = -1.0, 20.0
GREETING = [Act("hello")]


class Tracker(Protocol):
    """What the system believes. `FocusTracker` is one."""

    def reset(self) -> None:
        """Begin a dialogue."""

    def update(self, system_acts: list[Act], n_best: NBest) -> "Belief | Mapping[str, str]":
        """The belief after a turn of both: a `Belief`, or the constraints themselves, slot -> value."""


Evaluator = Callable[[Any, Sequence[Sequence[Act]]], Any]  # (goal, system turns) -> Outcome, or whether it succeeded


class GoalOriented:
    """Everything but the system's policy. One dialogue is one episode, one step is one reply and the user's answer.

    user: speaks acts (`User`); one that has `words` after its turn has chosen its words itself (`HumanUser`)
    tracker: keeps the belief (`Tracker`), from which the line `[db]` behind each turn of the user is made
    evaluator: reads the verdict from the goal and the system's acts (`success.Evaluator`)
    nlu: the system's words -> acts; nlg: the user's acts and a stream -> words. Without them a turn is acts as text, such
        as `inform(food=thai)`. `system_words(domain).read` and `user_words(domain).say` are for words.
    domain: goals and entities; by default the tracker's
    max_turns: replies after which the dialogue is cut off (`truncated`), and has failed

    A dialogue depends on (seed, dialogue) and the replies only. -1 for each step, and +20 at the end when it succeeded.
    Raises UserError for a part that returns something that cannot be used.
    """

    baselines = ("handcrafted", "random")  # policies of acts that understand it, see `environments.base.Baseline`

    def __init__(
        self,
        user: User,
        tracker: Tracker,
        evaluator: Evaluator,
        nlu: Callable[[str], list[Act]] | None = None,
        nlg: Callable[[list[Act], Random], str] | None = None,
        domain: Domain | str | Path | None = None,
        max_turns: int = MAX_TURNS,
    ):
        if max_turns < 1:
            raise UserError(f"max_turns is {max_turns}; give 1 or more")
        domain = getattr(tracker, "domain", None) if domain is None else domain
        if domain is None:
            raise UserError(f"tracker {type(tracker).__name__}: it has no domain; give domain= to GoalOriented")
        self.domain = domain if isinstance(domain, Domain) else load_domain(domain)
        self.slots = {*self.domain.constraints, *self.domain.requestable}
        self.user, self.tracker, self.evaluator, self.max_turns = user, tracker, evaluator, max_turns
        self.nlu = acts_of if nlu is None else nlu
        self.nlg = _as_acts if nlg is None else nlg
        self._seed: int | None = None
        self.dialogue = -1

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin a dialogue: the user's first turn, which answers a greeting, and the line of the data base.

        `seed` begins with dialogue 0, without it the next one follows; `options` are `ActLevel.reset`'s: dialogue, goal.
        """
        options = options or {}
        if seed is not None or self._seed is None:
            self._seed, self.dialogue = SystemRandom().randrange(2**31) if seed is None else seed, -1
        self.dialogue = int(options.get("dialogue", self.dialogue + 1))
        rng, self._words = (Random(f"{self._seed}/{self.dialogue}/{part}") for part in ("user", "words"))
        goal = goal_of(self.domain, options["goal"]) if "goal" in options else draw_goal(self.domain, rng)
        self.first_goal = goal.copy()
        self.tracker.reset()
        self.offers: list[str] = []
        self.system_acts: list[list[Act]] = []
        self.user_acts = [self._acts(self.user, "begin", self.user.begin(goal, rng))]
        return self._heard(GREETING), {"dialogue": self.dialogue}

    def step(self, reply: str) -> Step:
        """Say the reply, and hear the user. At the end `info` has goal, acts of both sides, success and turns."""
        acts = [act for act in self._acts(self.nlu, "nlu", self.nlu(reply)) if self._makes_sense(act)] or [NULL]
        self.system_acts.append(acts)
        answer = self._acts(self.user, "answer", self.user.answer(acts))
        self.user_acts.append(answer)
        terminated = any(act.intent == "bye" for act in answer)
        truncated = not terminated and len(self.system_acts) >= self.max_turns
        if not (terminated or truncated):
            return self._heard(acts), TURN_REWARD, False, False, {"dialogue": self.dialogue}
        info = self._ended(terminated)
        return self._spoken(), TURN_REWARD + SUCCESS_REWARD * info["success"], terminated, truncated, info

    def _acts(self, part: Any, method: str, acts: Any) -> list[Act]:
        """What a part said; one without acts is `null`."""
        if not isinstance(acts, list) or not all(isinstance(act, Act) for act in acts):
            name = getattr(part, "__qualname__", type(part).__name__)
            raise UserError(
                f"{'nlu' if method == 'nlu' else 'user'} {name}: {method} returned {acts!r}; return a list of Act"
            )
        return acts or [NULL]

    def _makes_sense(self, act: Act) -> bool:
        """Not about a slot that the domain lacks, no confirmation of what cannot be constrained, no value left out."""
        constrained = (*self.domain.constraints, NAME)
        if act.slot and act.slot not in (constrained if act.intent in ("confirm", "select") else self.slots):
            return False
        return act.intent not in ("confirm", "select", "inform") or bool(act.slot and act.value)

    def _spoken(self) -> str:
        """The user's last turn in words."""
        words = getattr(self.user, "words", None)
        words = self.nlg(self.user_acts[-1], self._words) if words is None else words
        if not isinstance(words, str):
            raise UserError(f"nlg {getattr(self.nlg, '__qualname__', self.nlg)}: returned {words!r}; return a text")
        return words

    def _heard(self, system_acts: list[Act]) -> str:
        """The user's last turn, and what the data base has for the belief after it."""
        self.belief = self.tracker.update(system_acts, [(self.user_acts[-1], 1.0)])
        self.offers += [act.value for act in system_acts if (act.intent, act.slot) == ("inform", NAME)]
        return f"{self._spoken()}\n{self._db_line()}"

    def _db_line(self) -> str:
        """`[db] 3 match: name=..., area=...`: how many entities fit, and the one to speak of."""
        entities = self.domain.matching(self._constraints())
        shown = self._shown(entities)
        slots = [f"{slot}={value}" for slot, value in shown.items() if value != UNKNOWN] if shown else []
        return f"[db] {len(entities)} match" + (f": {', '.join(slots)}" if slots else "")

    def _constraints(self) -> dict[str, str]:
        belief = self.belief
        found = summarise(self.domain, belief).accepted if isinstance(belief, Belief) else belief
        if not isinstance(found, Mapping) or not set(found) <= set(self.domain.constraints):
            raise UserError(
                f"tracker {type(self.tracker).__name__}: update returned {belief!r}; return a Belief, or a dict of "
                f"constraint slots ({', '.join(self.domain.constraints)}) and their values"
            )
        return dict(found)

    def _shown(self, entities: Sequence[Entity]) -> Entity | None:
        """The venue that was offered last if it still fits; where the user wants another one, the first that was not."""
        new = [entity for entity in entities if entity[NAME] not in self.offers]
        wants_another = any(act.intent == "reqalts" for act in self.user_acts[-1])
        again = [] if wants_another else [entity for entity in entities if entity[NAME] == (self.offers or [""])[-1]]
        return next(iter([*again, *new, *entities]), None)

    def _ended(self, terminated: bool) -> dict[str, Any]:
        """What is known at the end. A user cannot take back what it wanted: requests and constraint slots stay."""
        goal = self.user.goal
        if isinstance(goal, Goal):
            goal = goal.copy()
            goal.constraints = self.first_goal.constraints | goal.constraints
            goal.requests = self.first_goal.requests | goal.requests
            goal.wanted_name = self.first_goal.wanted_name
        outcome = self.evaluator(goal, self.system_acts)
        success = getattr(outcome, "success", outcome)
        if not isinstance(success, bool):
            name = getattr(self.evaluator, "__qualname__", type(self.evaluator).__name__)
            raise UserError(f"evaluator {name}: returned {outcome!r}; return an Outcome, True or False")
        return {
            "dialogue": self.dialogue,
            "goal": goal.as_dict() if isinstance(goal, Goal) else goal,
            "first_goal": self.first_goal.as_dict(),
            "user_acts": self.user_acts,
            "system_acts": self.system_acts,
            "outcome": outcome,
            "success": terminated and success,
            "turns": len(self.system_acts),
        }


def _as_acts(acts: list[Act], rng: Random) -> str:
    return text_of(acts)
