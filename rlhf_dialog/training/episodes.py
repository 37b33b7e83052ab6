"""Dialogues of the policy with its environments, turn by turn, as text and as tokens.

B episodes, P prompt tokens, T tokens after the prompt, of both speakers.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from rlhf_dialog.data.dialogue import POLICY, Dialogue
from rlhf_dialog.environments.base import Environment, Limits, answer, check_turns, open_episode
from rlhf_dialog.models.chat_agent import Reply, Speaker
from rlhf_dialog.models.device_copies import fetch, send, send_all
from rlhf_dialog.models.generation import Responses, as_wide, random_numbers
from rlhf_dialog.models.packed_rows import numbers_of
from rlhf_dialog.models.sizes import num_positions
from rlhf_dialog.training.segments import Segments, Span, segments_of

LIMITS = Limits()


@dataclass
class Episodes:
    """B finished dialogues.

    `responses.mask` is True on what the policy wrote: between two of its replies it has a hole, where `responses.ids` holds the
    user's turn. `responses.truncated`: a reply reached the length limit, or the dialogue was broken off. `segments`: the contexts
    of the replies where oldest turns had to leave some; None where each reply saw the prompt and all that followed.
    """

    dialogues: list[Dialogue]
    prompt_ids: Tensor  # (B, P), padded left
    prompt_mask: Tensor  # (B, P)
    responses: Responses
    turn_rewards: Tensor | None  # (B, T), the reward of each step on the last token of its reply; None if all are 0
    prompt_numbers: Tensor  # (B,), on the host; episodes with the same number have the same prompt
    segments: Segments | None = None

    def in_segments(self) -> "Episodes":
        """Each segment as an episode of its own."""
        if self.segments is None:
            return self
        of_tokens = {**self.segments.columns_of(self.responses)}
        prompts = {name: of_tokens.pop(name) for name in ("prompt_ids", "prompt_mask", "prompt_numbers", "segments")}
        dialogues = [self.dialogues[row] for row in self.segments.rows]
        return Episodes(dialogues, **prompts, responses=Responses(**of_tokens), turn_rewards=None)


@dataclass(frozen=True)
class _Round:
    """One reply in each of the episodes `rows`; `starts` is the number of tokens between its prompt and the reply."""

    rows: list[int]
    starts: list[int]
    responses: Responses


@dataclass(frozen=True)
class _Opening:
    """`turns` with which a context may begin: the first is turn `number`, and `end` tokens of the episode end with the last.

    They are encoded as a prompt; what follows keeps its ids.
    """

    turns: list[str]
    number: int
    end: int


@dataclass(frozen=True)
class _Part:
    """The tokens `start` to `end` of an episode, and the prompt behind which they follow."""

    prompt: list[int]
    start: int
    end: int


class EpisodeInProgress:
    """A dialogue that goes on: all tokens `behind` its first prompt, and the newest part of it, which the policy sees."""

    def __init__(self, environment: Environment, dialogue: Dialogue, speaker: Speaker):
        self.environment, self.dialogue, self.speaker = environment, dialogue, speaker
        turns = dialogue.prompt_turns
        self.prompt, self.start = speaker.encoder.encode_prompt(turns), 0
        self.openings = [_Opening(turns[number:], number, 0) for number in range(len(turns))]
        self.behind: list[int] = []
        self.past: list[_Part] = []

    @property
    def context(self) -> list[int]:
        return self.prompt + self.behind[self.start :]

    @property
    def parts(self) -> list[_Part]:
        return [*self.past, _Part(self.prompt, self.start, len(self.behind))]

    def step(self, reply: Reply, limits: Limits) -> tuple[float, bool]:
        """Say the reply and hear the user; the reward, and whether the dialogue goes on."""
        self.behind += reply.ids
        text, reward, terminated, cut, info = answer(self.environment, reply.text, limits)
        ended = terminated or cut
        heard = [] if ended else self.speaker.encoder.encode_heard(reply.ids, text)
        said = self.dialogue.said(reply.text, reply.truncated or cut)
        self.dialogue = said.heard(text) if heard or text else said
        if ended and (known := plain(info)):
            self.dialogue.meta = self.dialogue.meta | {"info": known}
        full = bool(heard) and not self._hear(reply.text, text, heard)
        self.dialogue.truncated |= full
        return reward, not (ended or full)

    def _hear(self, said: str, text: str, heard: list[int]) -> bool:
        """Take in the user's turn; whole oldest turns leave a context without room for them. False where that is not enough."""
        number = len(self.dialogue.prompt_turns) + len(self.dialogue.turns) - 1
        size, room = self.speaker.context_size, self._room()
        end = len(self.behind) + len(heard)
        openings = [*self.openings, _Opening([said, text], number - 1, end), _Opening([text], number, end)]
        allowed = [one for one in openings if size is None or number - one.number < size]
        if allowed[0] is openings[0] and (room is None or len(self.context) + len(heard) <= room):
            self.openings = openings
            self.behind += heard
            return True
        for i, opening in enumerate(allowed):
            after = [*self.behind, *heard][opening.end :]
            prompt = self.speaker.encoder.encode_prompt(opening.turns) + after
            if room is None or len(prompt) <= room:
                self.past, self.openings = self.parts, allowed[i:]
                self.behind += heard
                self.prompt, self.start = prompt, len(self.behind)
                return True
        return False

    def _room(self) -> int | None:
        """The number of tokens that a prompt may have, so that the longest reply still has its positions; None without limit."""
        positions, longest = num_positions(self.speaker.policy.lm), self.speaker.encoder.max_prompt_length
        return longest if positions is None else min(longest, positions - self.speaker.sampling.max_new_tokens)


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


def play(
    environments: Sequence[Environment],
    speaker: Speaker,
    seeds: Sequence[int] | None = None,
    limits: Limits = LIMITS,
    streams: Sequence[torch.Generator] | None = None,
    metas: Sequence[dict[str, Any]] | None = None,
) -> Episodes:
    """Play one episode of each environment; in each round, all dialogues that continue are answered in one batch.

    A context without room for another reply loses its oldest turns (`Episodes.segments`); a dialogue is truncated where the
    newest turn alone is too long. `seeds` holds one seed for each environment; without them the environments choose. `streams`:
    what draws the replies of each, by default torch's global random state. `metas`: what `Dialogue.meta` of each holds, too.
    Raises UserError when an environment does not follow `Environment`, or passes the `limits`.
    """
    opening = zip(environments, repeat(None) if seeds is None else seeds, strict=seeds is not None)
    talks = [EpisodeInProgress(one, open_episode(one, seed, limits), speaker) for one, seed in opening]
    for talk, meta in zip(talks, metas or (), strict=metas is not None):
        talk.dialogue.meta = talk.dialogue.meta | meta
    prompt_ids, prompt_mask = inputs = speaker.batch([talk.prompt for talk in talks])
    prompt_numbers = numbers = numbered([talk.prompt for talk in talks], [talk.dialogue for talk in talks])
    rounds, paid, live = [], [], list(range(len(talks)))
    while live:
        drawn = None if streams is None else _drawn([streams[row] for row in live], speaker)
        rounds.append(_Round(live, [len(talks[row].behind) for row in live], speaker.write(*inputs, drawn, numbers)))
        live = []
        for row, reply in zip(rounds[-1].rows, speaker.read(rounds[-1].responses), strict=True):
            place = len(talks[row].behind) + len(reply.ids) - 1
            reward, goes_on = talks[row].step(reply, limits)
            paid.append((row, place, reward))
            if goes_on:
                check_turns(environments[row], len(rounds), limits)
                live.append(row)
        contexts = [talks[row].context for row in live]
        inputs, numbers = speaker.batch(contexts), numbered(contexts, [talks[row].dialogue for row in live])
    dialogues = [talk.dialogue for talk in talks]
    responses = _joined(rounds, [talk.behind for talk in talks], speaker.encoder.pad_id)
    responses.truncated = send(torch.tensor([d.truncated for d in dialogues]), prompt_ids.device)
    segments = _segments(talks, speaker, responses.mask.shape)
    return Episodes(
        dialogues, prompt_ids, prompt_mask, responses, _on_tokens(paid, responses), prompt_numbers, segments
    )


def numbered(prompts: Sequence[list[int]], dialogues: Sequence[Dialogue]) -> Tensor:
    """A number for each prompt (B,), on the host: the same for equal prompts of the same `group` in the dialogue's `meta`."""
    groups = [dialogue.meta.get("group", i) for i, dialogue in enumerate(dialogues)]
    return numbers_of((group, *ids) for group, ids in zip(groups, prompts, strict=True))


def _drawn(streams: Sequence[torch.Generator], speaker: Speaker) -> Tensor:
    """The random numbers (b, T) of one reply from each stream."""
    rows = [random_numbers(1, speaker.sampling, torch.device("cpu"), one) for one in streams]
    return send(torch.cat(rows), speaker.policy.lm.device)


def _segments(talks: Sequence[EpisodeInProgress], speaker: Speaker, shape: Sequence[int]) -> Segments | None:
    """The contexts of the replies in dialogues of `shape` (B, T); None where no turn had to leave one."""
    if not any(talk.past for talk in talks):
        return None
    parts = [(row, part) for row, talk in enumerate(talks) for part in talk.parts]
    spans = [Span(row, part.start, part.end) for row, part in parts]
    return segments_of(*speaker.batch([part.prompt for _, part in parts]), spans, (shape[0], shape[1]))


def _on_tokens(paid: list[tuple[int, int, float]], responses: Responses) -> Tensor | None:
    """The rewards `paid` (row, column, reward) as a tensor (B, T); None when all are 0."""
    if not any(reward for *_, reward in paid):
        return None
    rows, columns, rewards = zip(*paid, strict=True)
    found = responses.logprobs.new_zeros(responses.mask.shape)
    at = send_all([torch.tensor(rows), torch.tensor(columns)], found.device)
    return found.index_put_(tuple(at), send(torch.tensor(rewards, dtype=found.dtype), found.device))


def _joined(rounds: list[_Round], behind: list[list[int]], pad_id: int) -> Responses:
    """The replies of each episode in one row, with the user's turns between them."""
    if len(rounds) == 1:
        return rounds[0].responses
    device, shape = rounds[0].responses.ids.device, (len(behind), max(map(len, behind)))
    masks = fetch(*(one.responses.mask for one in rounds))
    places = [_places(one, mask) for one, mask in zip(rounds, masks, strict=True)]
    rows, columns = send_all([torch.cat(x) for x in zip(*places, strict=True)], device)
    written = [send(mask.flatten().nonzero()[:, 0], device) for mask in masks]
    joined: dict[str, Tensor | None] = {}
    for name in (field.name for field in fields(Responses) if field.name not in ("ids", "mask", "truncated")):
        of_rounds = [getattr(one.responses, name) for one in rounds]
        if of_rounds[0] is None:
            joined[name] = None
            continue
        empty = -1 if name == "support" else 0
        tokens = [x.flatten(0, 1).index_select(0, at) for x, at in zip(of_rounds, written, strict=True)]
        x = torch.cat(as_wide(tokens, empty))
        joined[name] = x.new_full((*shape, *x.shape[1:]), empty).index_put_((rows, columns), x)
    ids = send(torch.tensor([row + [pad_id] * (shape[1] - len(row)) for row in behind]), device)
    mask = torch.zeros(shape, dtype=torch.bool, device=device).index_put_((rows, columns), torch.ones_like(rows).bool())
    return Responses(ids, mask, mask.new_zeros(shape[0]), **joined)  # type: ignore[arg-type]


def _places(one: _Round, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and columns, each (n,), of the n tokens of a round, whose mask is on the host, within the joined responses."""
    rows, starts = (torch.tensor(x).unsqueeze(1) for x in (one.rows, one.starts))
    return rows.expand_as(mask)[mask], (starts + mask.cumsum(dim=1) - 1)[mask]
