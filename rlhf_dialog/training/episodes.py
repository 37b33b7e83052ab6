"""Dialogues of the policy with its environments, turn by turn, as text and as tokens.

B episodes, T tokens after the prompt, of both speakers.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from rlhf_dialog.data.dialogue import POLICY, Dialogue
from rlhf_dialog.environments.base import (
    Environment,
    EpisodeLimits,
    SingleTurn,
    answer,
    check_turns,
    open_episode,
)
from rlhf_dialog.models.generation import Reply, Responder, Responses, random_numbers
from rlhf_dialog.models.policy import num_positions
from rlhf_dialog.models.token_batch import group_equal, send
from rlhf_dialog.training.multi_turn import Part, Round, Segments, join_rounds, place_rewards, split_contexts

LIMITS = EpisodeLimits()


@dataclass(frozen=True)
class EpisodeInputs:
    """What `run_episodes` needs of B dialogues.

    `seeds`: of the users of the environments; None: the environments choose. `streams`: what draws the replies of each dialogue;
    None: torch's global random state. `metas`: what `Dialogue.origin` of each holds.
    """

    environments: Sequence[Environment]
    limits: EpisodeLimits = LIMITS
    seeds: Sequence[int] | None = None
    streams: Sequence[torch.Generator] | None = None
    metas: Sequence[dict[str, Any]] | None = None


def deal_prompts(prompts: Sequence[Dialogue]) -> EpisodeInputs:
    """An environment of one turn for each of the prompts, which the policy answers once."""
    return EpisodeInputs([SingleTurn(prompt) for prompt in prompts])


@dataclass
class Episodes:
    """B finished dialogues.

    The mask of `responses` is True on what the policy wrote: between two of its replies it has a hole, where the ids are those of
    the user's turn. `responses.truncated`: a reply reached the length limit, or the dialogue was broken off. `turn_rewards`
    (B, T): the reward of each step on the last token of its reply; None if all are 0. `segments`: the contexts of the replies
    where oldest turns had to leave some; None where each reply saw the prompt and all that followed.
    """

    dialogues: list[Dialogue]
    responses: Responses
    turn_rewards: Tensor | None = None
    segments: Segments | None = None


@dataclass(frozen=True)
class _Opening:
    """`turns` with which a context may begin: the first is turn `number`, and `end` tokens of the episode end with the last.

    They are encoded as a prompt; what follows keeps its ids.
    """

    turns: list[str]
    number: int
    end: int


class EpisodeInProgress:
    """A dialogue that goes on: all tokens `behind` its first prompt, and the newest part of it, which the policy sees."""

    def __init__(self, environment: Environment, dialogue: Dialogue, responder: Responder):
        self.environment = environment
        self.dialogue = dialogue
        self.responder = responder
        turns = dialogue.prompt_turns
        self.prompt, self.start = responder.encoder.encode_prompt(turns, dialogue.system), 0
        self.openings = [_Opening(turns[number:], number, 0) for number in range(len(turns))]
        self.behind: list[int] = []
        self.past: list[Part] = []

    @property
    def context(self) -> list[int]:
        return self.prompt + self.behind[self.start :]

    @property
    def parts(self) -> list[Part]:
        return [*self.past, Part(self.prompt, self.start, len(self.behind))]

    def step(self, reply: Reply, limits: EpisodeLimits) -> tuple[float, bool]:
        """Say the reply and hear the user; the reward, and whether the dialogue goes on."""
        self.behind += reply.ids
        text, reward, terminated, cut, info = answer(self.environment, reply.text, limits)
        ended = terminated or cut
        answer_ids = [] if ended else self.responder.encoder.encode_heard(reply.ids, text)
        said = self.dialogue.with_reply(reply.text, reply.truncated or cut)
        self.dialogue = said.with_user_turn(text) if answer_ids or text else said
        if ended and (known := plain(info)):
            self.dialogue.meta = self.dialogue.meta | {"info": known}
        full = bool(answer_ids) and not self._hear(reply.text, text, answer_ids)
        self.dialogue.truncated |= full
        return reward, not (ended or full)

    def _hear(self, reply: str, text: str, answer_ids: list[int]) -> bool:
        """Take in the user's turn; whole oldest turns leave a context without room for them. False where that is not enough."""
        number = len(self.dialogue.prompt_turns) + len(self.dialogue.turns) - 1
        size = self.responder.context_size
        room = self.responder.encoder.max_prompt_length
        if (positions := num_positions(self.responder.policy.lm)) is not None:
            room = min(room, positions - self.responder.sampling.max_new_tokens)  # the longest reply has its positions
        end = len(self.behind) + len(answer_ids)
        openings = [*self.openings, _Opening([reply, text], number - 1, end), _Opening([text], number, end)]
        if rewrites := self.responder.encoder.rewrites_history:  # each context is written anew
            turns = [*self.dialogue.prompt_turns, *(turn.text for turn in self.dialogue.turns)]
            openings = [_Opening(turns[first:], first, end) for first in range(len(turns))]
        allowed = [x for x in openings if size is None or number - x.number < size]
        if not rewrites and allowed[0] is openings[0] and len(self.context) + len(answer_ids) <= room:
            self.openings = openings
            self.behind += answer_ids
            return True
        for i, opening in enumerate(allowed):
            after = [*self.behind, *answer_ids][opening.end :]
            prompt = self.responder.encoder.encode_prompt(opening.turns, self.dialogue.system) + after
            if len(prompt) <= room:
                self.past = self.parts
                self.openings = allowed[i:]
                self.behind += answer_ids
                self.prompt = prompt
                self.start = len(self.behind)
                return True
        return False


def newest_turns(dialogue: Dialogue) -> list[str]:
    """The turns that replies answered, and one for which there was no room; not a last word after which the dialogue ended."""
    heard = [turn.text for turn in dialogue.turns if turn.speaker != POLICY]
    ended = dialogue.later and not dialogue.truncated
    return [dialogue.prompt_turns[-1], *(heard[:-1] if ended else heard)]


def plain(info: dict[str, Any]) -> dict[str, Any]:
    """What of an environment's last info is JSON, NumPy's numbers as Python's.

    >>> plain({"success": np.True_, "turns": 3, "acts": object()})
    {'success': True, 'turns': 3}
    """
    counts = {}
    for name, value in info.items():
        value = value.item() if getattr(value, "ndim", None) == 0 else value
        try:
            json.dumps({name: value}, ensure_ascii=False).encode()  # a half character is no JSON
        except (TypeError, ValueError):
            continue
        counts[name] = value
    return counts


def run_episodes(inputs: EpisodeInputs, responder: Responder) -> Episodes:
    """Play one episode of each environment; in each round, all dialogues that continue are answered in one batch.

    A context without room for another reply loses its oldest turns (`Episodes.segments`); a dialogue is truncated where the
    newest turn alone is too long. Raises UserError when an environment does not follow `Environment`, or passes the limits.
    """
    seeds = repeat(None) if inputs.seeds is None else inputs.seeds
    openings = zip(inputs.environments, seeds, strict=inputs.seeds is not None)
    talks = [EpisodeInProgress(x, open_episode(x, seed, inputs.limits), responder) for x, seed in openings]
    for talk, meta in zip(talks, inputs.metas or (), strict=inputs.metas is not None):
        talk.dialogue = talk.dialogue.from_origin(**meta)
    rounds: list[Round] = []
    rewards: list[tuple[int, int, float]] = []
    live = list(range(len(talks)))
    while live:
        contexts = [talks[row].context for row in live]
        prompts = responder.batch(contexts, prompt_group_ids(contexts, [talks[row].dialogue for row in live]))
        uniform = None  # or random numbers (b, T), one row from each stream
        if inputs.streams is not None:
            drawn = [random_numbers(1, responder.sampling, torch.device("cpu"), inputs.streams[row]) for row in live]
            uniform = send(torch.cat(drawn), responder.policy.lm.device)
        responses = responder.generate(prompts, uniform)
        rounds.append(Round(live, [len(talks[row].behind) for row in live], responses))
        live = []
        for row, reply in zip(rounds[-1].rows, responder.read(responses), strict=True):
            last_token = len(talks[row].behind) + len(reply.ids) - 1
            reward, goes_on = talks[row].step(reply, inputs.limits)
            rewards.append((row, last_token, reward))
            if goes_on:
                check_turns(inputs.environments[row], len(rounds), inputs.limits)
                live.append(row)
    dialogues = [talk.dialogue for talk in talks]
    if len(rounds) > 1:
        responses = join_rounds(rounds, [talk.behind for talk in talks])
    responses.truncated = torch.tensor([dialogue.truncated for dialogue in dialogues])
    episodes, known = Episodes(dialogues, responses), (responses.logprobs, responses.sampled_logprobs)
    if any(reward for *_, reward in rewards):
        episodes.turn_rewards = place_rewards(rewards, next(x for x in known if x is not None))
    if any(talk.past for talk in talks):
        episodes.segments = split_contexts(
            [talk.parts for talk in talks], responder, responses.tokens.response_ids.shape
        )
    return episodes


def prompt_group_ids(prompts: Sequence[list[int]], dialogues: Sequence[Dialogue]) -> Tensor:
    """A number for each prompt (B,), on the host: the same for equal prompts of the same `group` in the dialogue's `origin`."""
    groups = [dialogue.origin_of("group", i) for i, dialogue in enumerate(dialogues)]
    return group_equal((group, *ids) for group, ids in zip(groups, prompts, strict=True))
