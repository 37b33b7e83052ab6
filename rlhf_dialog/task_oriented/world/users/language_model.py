"""A language model as the user: it is the policy's mirror image, with a persona and a goal that the policy does not see."""

import re
from collections.abc import Sequence
from copy import copy
from functools import lru_cache
from pathlib import Path
from random import Random, SystemRandom
from typing import TYPE_CHECKING, Any

from rlhf_dialog.config.registry import EnvironmentFactory
from rlhf_dialog.environments.base import Step
from rlhf_dialog.errors import UserError

if TYPE_CHECKING:
    from rlhf_dialog.models.chat_agent import ChatAgent

PERSONA = "Play a person who talks with an assistant, in short turns."
GOAL = "What you want, which you do not say all at once: {goal} Say goodbye when you have it."
GOODBYE = ("goodbye", "good bye", "bye")
FIRST_WORDS = "Hello ."  # where the model begins with nothing
LONGEST_PROMPT = 512  # tokens, for a folder that does not say what it was trained with


@EnvironmentFactory.register("language_model_user")
class LMUser:
    """Any causal LM with swapped roles: its own turns are the assistant's, and the policy's replies are what it hears.

    model: folder or Hub name; code in it is never run. Or a `ChatAgent`, whose own sampling is used
    persona: who the user is; the model reads it, with the goal, before the dialogue. Without persona and goals it reads
        the dialogue alone, as a model does that was trained on dialogues and not on instructions
    goals: what users want; each dialogue draws one. Texts, or a file with one on each line
    openings: first turns, of which each dialogue draws one, as `goals`; without them the model writes the first turn
    goodbye: words that end the dialogue in a turn of the user; an empty turn ends it too
    max_turns: replies after which the dialogue is cut off (`truncated`)
    turn_separator, max_prompt_length, max_new_tokens, temperature, top_k, top_p: as in a run's YAML; by default those of
        the model's folder, and for a folder that does not say them the chat template where there is one

    A dialogue depends on (seed, dialogue) and the replies only, so environments may be played in any order. `answer_all`
    generates for many of them at once. The reward of a step is 0; `info` has `dialogue` and `goal`.
    Raises UserError when the model cannot be loaded, and when there is nothing from which the first turn can be made.
    """

    def __init__(
        self,
        model: "str | ChatAgent",
        persona: str = PERSONA,
        goals: str | Sequence[str] = (),
        openings: str | Sequence[str] = (),
        goodbye: Sequence[str] = GOODBYE,
        max_turns: int = 10,
        device: str = "auto",
        **sampling: Any,
    ):
        if max_turns < 1:
            raise UserError(f"max_turns is {max_turns}; give 1 or more")
        self.goals, self.openings = _texts("goals", goals), _texts("openings", openings)
        if not (persona or self.goals or self.openings):
            raise UserError("language_model_user: there is no persona, goal or opening; give one of them")
        self.persona, self.max_turns = persona, max_turns
        self.ends = re.compile(rf"\b(?:{'|'.join(map(re.escape, goodbye)) or '(?!)'})\b", re.IGNORECASE)
        self._model = (model, device, tuple(sorted(sampling.items())))
        self._seed: int | None = None
        self.dialogue = -1

    @property
    def responder(self) -> "ChatAgent":
        """The model, which is loaded when it is needed first; environments with the same arguments share it."""
        model, device, sampling = self._model
        return load_responder(model, device, sampling) if isinstance(model, str) else model

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin a dialogue; `options` may have its number (`dialogue`), a `goal` and an `opening` of your own."""
        options = options or {}
        if seed is not None or self._seed is None:
            self._seed, self.dialogue = SystemRandom().randrange(2**31) if seed is None else seed, -1
        self.dialogue = int(options.get("dialogue", self.dialogue + 1))
        rng = self._stream("goal")
        choices = [rng.choice(texts) if texts else "" for texts in (self.goals, self.openings)]
        self.goal, opening = options.get("goal", choices[0]), options.get("opening", choices[1])
        goal_text = GOAL.format(goal=self.goal) if self.goal else ""
        self.instruction = " ".join(filter(None, (self.persona, goal_text)))
        self.turns: list[str] = []
        self.turns = [opening or _write([self])[0] or FIRST_WORDS]
        return self.turns[0], self._info()

    def step(self, reply: str) -> Step:
        return answer_all([self], [reply])[0]

    def _info(self) -> dict[str, Any]:
        return {"dialogue": self.dialogue, "goal": self.goal}

    def _stream(self, part: str) -> Random:
        return Random(f"{self._seed}/{self.dialogue}/{part}")

    def _prompt(self) -> list[list[str]]:
        """What the model may read before its turn, the longest first: without an instruction all that was said."""
        if not self.instruction:
            return [list(self.turns)]
        starts = range(0, max(len(self.turns), 1), 2)  # a turn of the user and its reply go together
        return [[self.instruction, *self.turns[start:]] for start in starts]


def answer_all(users: Sequence[LMUser], replies: Sequence[str]) -> list[Step]:
    """One step in each of several dialogues, with one generation for those that share a model.

    The turns are those of `step`, up to the rounding of a batch.
    """
    for user, reply in zip(users, replies, strict=True):
        user.turns.append(reply)
    going = [user for user in users if len(user.turns) < 2 * user.max_turns]
    texts = dict(zip(map(id, going), _write(going), strict=True))
    steps: list[Step] = []
    for user in users:
        if (text := texts.get(id(user))) is None:  # no turn is left
            steps.append(("", 0.0, False, True, user._info()))
        else:
            user.turns.append(text)
            steps.append((text, 0.0, not text or bool(user.ends.search(text)), False, user._info()))
    return steps


def _write(users: Sequence[LMUser]) -> list[str]:
    texts: dict[int, str] = {}
    for responder in {id(user.responder): user.responder for user in users}.values():
        rows = [row for row, user in enumerate(users) if user.responder is responder]
        prompts = [users[row]._prompt() for row in rows]
        streams = [users[row]._stream(f"user/{len(users[row].turns)}") for row in rows]
        texts |= zip(rows, write_turns(responder, prompts, streams), strict=True)
    return [texts[row] for row in range(len(users))]


def write_turns(responder: "ChatAgent", prompts: Sequence[list[list[str]]], streams: Sequence[Random]) -> list[str]:
    """What the model says next, for each prompt: of its variants, the longest first, the first one that fits is read.

    All chance comes from the stream of the prompt.
    """
    import torch

    ids = [_fitting(responder, variants) for variants in prompts]
    length = responder.sampling.max_new_tokens
    uniform = torch.tensor([[rng.random() for _ in range(length)] for rng in streams], dtype=torch.float64)
    responses = responder.generate(responder.batch(ids), uniform.to(responder.policy.lm.device))
    return [reply.text for reply in responder.read(responses)]


def _fitting(responder: "ChatAgent", variants: list[list[str]]) -> list[int]:
    """The ids of the first variant that the encoder need not shorten; else of the last one, without its oldest tokens."""
    encoder, boundless = responder.encoder, copy(responder.encoder)
    boundless.max_prompt_length = 2**31
    for turns in variants[:-1]:
        ids = boundless.encode_prompt(turns)
        if len(ids) <= encoder.max_prompt_length:
            return ids
    return encoder.encode_prompt(variants[-1])


@lru_cache(maxsize=4)
def load_responder(model: str, device: str = "auto", sampling: tuple[tuple[str, Any], ...] = ()) -> "ChatAgent":
    """The model of a folder or Hub name, with the `sampling` (keys of a run's YAML) in place of its own settings.

    Raises UserError when it cannot be loaded, or a key or its value is wrong.
    """
    from pydantic import ValidationError

    from rlhf_dialog.data import hub

    hub.check_folder(model, "language_model_user: model")
    from rlhf_dialog.models.chat_agent import AgentSettings, ChatAgent, read_settings

    try:
        folder = Path(hub.model_folder(model, "--agent", False))
        settings = read_settings(folder, AgentSettings(max_prompt_length=LONGEST_PROMPT))  # room for a persona
        values = settings.model_dump() | dict(sampling)
        return ChatAgent.load(folder, device=device, settings=AgentSettings(**values))
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors())
        raise UserError(f"language_model_user: {wrong}; correct it") from None
    except UserError as error:
        raise error.with_location("model", "--agent").with_location("language_model_user") from error


def _texts(name: str, source: str | Sequence[str]) -> list[str]:
    """The texts themselves, or the lines of a file. Raises UserError for a file that cannot be read, or is empty."""
    if not isinstance(source, str):
        return list(source)
    try:
        lines = [line.strip() for line in Path(source).expanduser().read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise UserError(
            f"language_model_user: {name} '{source}' cannot be read: {error}; give a text file, or a list"
        ) from None
    if not any(lines):
        raise UserError(f"language_model_user: {name} '{source}' is empty; write one on each line")
    return list(filter(None, lines))
