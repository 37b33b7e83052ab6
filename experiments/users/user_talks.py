"""What users say in dialogues: real ones from data, and simulated ones who talk with somebody."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from experiments.users.fidelity import OTHER, UserTurns
from experiments.users.model_words import LMWords
from rlhf_dialog.data.sources import DialogueRecord
from rlhf_dialog.data.sources.record import ACTS
from rlhf_dialog.environments.corpus import CorpusUser
from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains import Domain
from rlhf_dialog.task_oriented.policies.handcrafted import Handcrafted
from rlhf_dialog.task_oriented.world.acts import Act, parse_acts
from rlhf_dialog.task_oriented.world.goals import parse_goal
from rlhf_dialog.task_oriented.world.users.language_model import LMUser, answer_all, write_turns
from rlhf_dialog.task_oriented.world.words import user_words

if TYPE_CHECKING:
    from rlhf_dialog.models.chat_agent import ChatAgent

logger = logging.getLogger(__name__)
ACT_NAMES = {number: name for name, number in ACTS.items()}
AT_ONCE = 64  # dialogues of a language model
Done = Callable[[], None]


@dataclass
class Talks:
    """What simulated users said, the real talks to compare with them, and what a reader has to know."""

    simulated: list[UserTurns]
    real: list[UserTurns]
    notes: list[str] = field(default_factory=list)


def real_talk(record: DialogueRecord, since: int = 0) -> UserTurns:
    """The first speaker's turns of a dialogue of the data, from turn `since` on, with their acts where the data has them."""
    acts: list[list[str]] | None = None
    if "dialogue_acts" in record.meta:
        acts = [labels(parse_acts(text)) for text in record.meta["dialogue_acts"][::2]][since:]
    elif record.acts:
        acts = [[ACT_NAMES[act]] for act in record.acts[::2]][since:]
    return UserTurns(record.turns[::2][since:], acts)


def labels(acts: Sequence[Act], allowed: set[str] | None = None) -> list[str]:
    """The acts of one turn as `intent slot`; `other` without any, or without any of the `allowed` ones."""
    names = dict.fromkeys(f"{act.intent} {act.slot}".strip() for act in acts)
    return [label for label in names if allowed is None or label in allowed] or [OTHER]


def replay(records: Sequence[DialogueRecord], real: Sequence[DialogueRecord], seed: int, done: Done) -> Talks:
    """`CorpusUser` on other dialogues of the same data: the control, which should not be recognised."""
    user, talks = CorpusUser(records), []
    for number in range(len(user.usable)):
        text, info = user.reset(seed, {"dialogue": number})
        turns, ended, cut = [text], False, False
        while not (ended or cut):
            text, _, ended, cut, _ = user.step("")
            turns += [text] if text else []
        acts = real_talk(records[info["record"]]).acts
        talks.append(UserTurns(turns, None if acts is None else acts[: len(turns)]))
        done()
    return Talks(talks, [real_talk(record) for record in real])


def agenda(
    domain: Domain,
    parameters: Any,
    speak: LMWords | None,
    records: Sequence[DialogueRecord],
    real: Sequence[DialogueRecord],
    seed: int,
    done: Done,
) -> Talks:
    """The agenda user and the handcrafted policy, without errors, on the goals of `records` where they fit the domain.

    Its acts are put into words by the templates, or by `speak`.
    """
    from rlhf_dialog.task_oriented.world.act_level import ActLevel

    environment, policy, words = ActLevel(domain, user=parameters), Handcrafted(domain), user_words(domain)
    real_talks = [real_talk(record) for record in real]
    known_labels = {label for talk in real_talks for acts in talk.acts or [] for label in acts}
    talks, goals = [], [_goal(domain, record) for record in records]
    for number, goal in enumerate(goals):
        options: dict[str, Any] = {"dialogue": number} | ({"goal": goal} if goal else {})
        observation, info = environment.reset(seed=seed, options=options)
        while "success" not in info:
            actions, _ = policy.act(observation[None], info["action_mask"][None])
            observation, _, _, _, info = environment.step(actions[0])
        user_acts: list[list[Act]] = info["user_acts"]
        rngs = [Random(f"{seed}/{number}/words/{turn}") for turn in range(len(user_acts))]
        texts = (
            speak.say_all(user_acts, rngs)
            if speak
            else [words.say(acts, rng) for acts, rng in zip(user_acts, rngs, strict=True)]
        )
        talks.append(UserTurns(texts, [labels(acts, known_labels) for acts in user_acts] if known_labels else None))
        done()
    notes = [
        f"{sum(map(bool, goals))} of {len(goals)} goals are those of the data; the others are drawn from the domain."
    ]
    if speak:
        notes.append(f"The templates said {speak.num_fallbacks} of {speak.num_turns} turns.")
    return Talks(talks, real_talks, notes)


def _goal(domain: Domain, record: DialogueRecord) -> dict[str, Any] | None:
    """The goal of a dialogue, None where it has none or the domain cannot fulfil it."""
    goal = record.meta.get("goal")
    if not isinstance(goal, dict):
        return None
    try:
        parse_goal(domain, goal)
    except UserError as error:
        logger.debug("%s", error)
        return None
    return {key: goal[key] for key in ("constraints", "requests")}


def language_model(  # noqa: PLR0913 - called once, from the command
    responder: "ChatAgent",
    partner: "ChatAgent",
    persona: str,
    max_turns: int,
    records: Sequence[DialogueRecord],
    real: Sequence[DialogueRecord],
    seed: int,
    done: Done,
) -> Talks:
    """The language model `responder` as the user, who talks with the language model `partner`.

    Without a persona it begins with the first turns of `records`, and these turns are left out on both sides. Else it writes
    its first turn, and its goals are those of `records` where they have goals.
    """
    plain = not persona
    openings = [record.turns[0] for record in records] if plain else []
    talks: list[UserTurns] = []
    for start in range(0, len(records), AT_ONCE):
        users = [
            LMUser(responder, persona, (), openings, max_turns=max_turns) for _ in records[start : start + AT_ONCE]
        ]
        for number, user in enumerate(users, start):
            user.reset(seed, _options(records[number], plain) | {"dialogue": number})
        _converse(users, partner, seed, start)
        for user in users:
            talks.append(UserTurns([turn for turn in user.turns[0::2] if turn][int(plain) :]))
            done()
    notes = ["The first turn of each dialogue is real, and left out."] if plain else []
    return Talks(talks, [real_talk(record, int(plain)) for record in real], notes)


def _options(record: DialogueRecord, plain: bool) -> dict[str, Any]:
    if plain:
        return {"opening": record.turns[0]}
    goal = record.meta.get("goal")
    text = goal.get("text") if isinstance(goal, dict) else goal
    return {"goal": text} if isinstance(text, str) else {}


def _converse(users: Sequence[LMUser], partner: "ChatAgent", seed: int, start: int) -> None:
    """Let the dialogues, the first of which has the number `start`, go on until all have ended."""
    live = list(range(len(users)))
    while live:
        streams = [Random(f"{seed}/{start + row}/partner/{len(users[row].turns)}") for row in live]
        replies = write_turns(partner, [[users[row].turns] for row in live], streams)
        steps = answer_all([users[row] for row in live], replies)
        live = [row for row, (_, _, ended, cut, _) in zip(live, steps, strict=True) if not (ended or cut)]
