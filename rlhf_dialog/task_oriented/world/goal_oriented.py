"""The goal-oriented environment in words: a user with a goal, a belief tracker, a verdict, and the words of both sides."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from rlhf_dialog.environments.base import says_success
from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains import NAME, UNKNOWN, Domain, load_domain
from rlhf_dialog.task_oriented.domains.domain import Entity
from rlhf_dialog.task_oriented.world.act_world import MAX_TURNS, ActWorld, acts_from
from rlhf_dialog.task_oriented.world.acts import Act, format_acts, parse_acts
from rlhf_dialog.task_oriented.world.error_channel import NULL
from rlhf_dialog.task_oriented.world.goals import Goal, draw_goal, parse_goal
from rlhf_dialog.task_oriented.world.summary import summarise
from rlhf_dialog.task_oriented.world.tracker import Belief
from rlhf_dialog.task_oriented.world.users import User

LINE_LENGTH = 160  # with which a prompt of 120 tokens keeps what the user says
# (goal, system turns) -> DialogueOutcome, or whether it succeeded
Evaluator = Callable[[Any, Sequence[Sequence[Act]]], Any]


class GoalOriented(ActWorld[str]):
    """Everything but the system's policy. One dialogue is one episode, one step is one reply and the user's answer.

    user: speaks acts (`User`); one that has `words` after its turn has chosen its words itself (`HumanUser`)
    tracker: keeps the belief, from which the line `[db]` behind each turn of the user is made: `reset()`, and
        `update(system_acts, n_best)`, which returns a `Belief`, or the constraints themselves, slot -> value (`FocusTracker`)
    evaluator: reads the verdict from the goal and the system's acts (`success.Evaluator`)
    nlu: the system's words -> acts; nlg: the user's acts and a stream -> words. Without them a turn is acts as text, such
        as `inform(food=thai)`. `system_words(domain).read` and `user_words(domain).say` are for words.
    domain: goals and entities; by default the tracker's
    max_turns: replies after which the dialogue is cut off (`truncated`), and has failed
    line_length: letters of the line `[db]` at most

    A dialogue depends on (seed, dialogue) and the replies only. -1 for each step, and +20 at the end when it succeeded.
    Raises UserError for a part that returns something that cannot be used.
    """

    baselines = ("handcrafted", "random")  # policies of acts that understand it, see `environments.base.Baseline`

    def __init__(  # noqa: PLR0913 - the parts of a dialogue
        self,
        user: User,
        tracker: Any,
        evaluator: Evaluator,
        nlu: Callable[[str], list[Act]] | None = None,
        nlg: Callable[[list[Act], Random], str] | None = None,
        domain: Domain | str | Path | None = None,
        max_turns: int = MAX_TURNS,
        line_length: int = LINE_LENGTH,
    ):
        super().__init__(max_turns)
        domain = getattr(tracker, "domain", None) if domain is None else domain
        if domain is None:
            raise UserError(f"tracker {type(tracker).__name__}: it has no domain; give domain= to GoalOriented")
        self.domain = domain if isinstance(domain, Domain) else load_domain(domain)
        self.slots = {*self.domain.constraints, *self.domain.requestable}
        self.user, self.tracker, self.evaluator, self.line_length = user, tracker, evaluator, line_length
        self.nlu = parse_acts if nlu is None else nlu
        self.nlg = (lambda acts, _: format_acts(acts)) if nlg is None else nlg

    def _draw_goal(self, options: dict[str, Any], rng: Random) -> Goal:
        return parse_goal(self.domain, options["goal"]) if "goal" in options else draw_goal(self.domain, rng)

    def _begin(self, goal: Goal) -> None:
        self._words = self._stream("words")
        self.tracker.reset()
        self.offers: list[str] = []

    def _system_turn(self, action: str) -> list[Act]:
        acts = acts_from("nlu", self.nlu, "nlu", action)
        constrained = (*self.domain.constraints, NAME)
        understood = []
        for act in acts:
            slots = constrained if act.intent in ("confirm", "select") else self.slots
            is_whole = act.intent not in ("confirm", "select", "inform") or (act.slot and act.value)
            if is_whole and (not act.slot or act.slot in slots):
                understood.append(act)
        return understood or [NULL]

    def _spoken(self) -> str:
        words = getattr(self.user, "words", None)
        words = self.nlg(self.user_acts[-1], self._words) if words is None else words
        if not isinstance(words, str):
            raise UserError(f"nlg {getattr(self.nlg, '__qualname__', self.nlg)}: returned {words!r}; return a text")
        return words

    def _observe(self, system_acts: list[Act], action: str | None, is_over: bool) -> str:
        """The user's last turn, and but for the end what the data base has for the belief after it."""
        if is_over:
            return self._spoken()
        self.belief = self.tracker.update(system_acts, [(self.user_acts[-1], 1.0)])
        self.offers += [act.value for act in system_acts if (act.intent, act.slot) == ("inform", NAME)]
        return f"{self._spoken()}\n{self._db_line()}"

    def _db_line(self) -> str:
        """`[db] 3 match: name=..., phone=..., area=...`: how many entities fit, and of one its name, what the user has asked for,
        and the slots of the belief. Slots that make it too long are left out.

        The entity is the one that was offered last if it still fits, or where the user wants another one, the first new one.
        """
        constraints = self._constraints()
        entities = self.domain.matching(constraints)
        new = [entity for entity in entities if entity[NAME] not in self.offers]
        wants_another = any(act.intent == "reqalts" for act in self.user_acts[-1])
        again = [] if wants_another else [entity for entity in entities if entity[NAME] == (self.offers or [""])[-1]]
        shown: Entity = next(iter([*again, *new, *entities]), {})
        line = f"[db] {len(entities)} match"
        asked = [act.slot for acts in self.user_acts for act in acts if act.intent in ("request", "confirm")]
        for slot in dict.fromkeys([NAME, *asked, *constraints]):
            value, mark = shown.get(slot, UNKNOWN), ":" if slot == NAME else ","
            if value != UNKNOWN and len(longer := f"{line}{mark} {slot}={value}") <= self.line_length:
                line = longer
        return line

    def _constraints(self) -> dict[str, str]:
        belief = self.belief
        constraints = summarise(self.domain, belief).accepted if isinstance(belief, Belief) else belief
        if not isinstance(constraints, Mapping) or not set(constraints) <= set(self.domain.constraints):
            raise UserError(
                f"tracker {type(self.tracker).__name__}: update returned {belief!r}; return a Belief, or a dict of "
                f"constraint slots ({', '.join(self.domain.constraints)}) and their values"
            )
        return dict(constraints)

    def _final_goal(self) -> Any:
        """A goal of the user's own kind is for the evaluator to read."""
        goal = getattr(self.user, "goal", None)
        return super()._final_goal().since(self.first_goal, self.domain) if isinstance(goal, Goal | None) else goal

    def _verdict(self, goal: Any) -> dict[str, Any]:
        outcome = self.evaluator(goal, self.system_acts)
        success = getattr(outcome, "success", outcome)
        if not says_success({"success": success}):
            name = getattr(self.evaluator, "__qualname__", type(self.evaluator).__name__)
            raise UserError(f"evaluator {name}: returned {outcome!r}; return a DialogueOutcome, True or False")
        return {"outcome": outcome, "success": bool(success)}
