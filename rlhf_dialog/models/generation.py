"""Sample responses token by token, with a cache of each row, and write them down.

B responses, b rows that are still written to, P prompt tokens (padded left), T response tokens (padded right), V vocabulary,
S kept tokens of a filter.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedTokenizerBase
from transformers.generation import LogitsProcessorList, TopKLogitsWarper, TopPLogitsWarper

from rlhf_dialog.data.chat_template import TurnEncoder, closing_ids, separator_of
from rlhf_dialog.data.dialogue import Dialogue, render_reply, render_target
from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.models.logprobs import at_least_float32
from rlhf_dialog.models.masks import position_ids_of
from rlhf_dialog.models.packing import Decoding, KeyValues, run_packed
from rlhf_dialog.models.part_sizes import GENERATION, PartSizes
from rlhf_dialog.models.policy import Policy, packs, supported_options
from rlhf_dialog.models.precision import converted_once
from rlhf_dialog.models.pretrained import num_ids
from rlhf_dialog.models.token_batch import TokenBatch, fetch, leaders, send

LOOK_EVERY = 8  # tokens, on a GPU
LOOP, ROUNDS = 8, 3  # tokens that come again, and how often: a reply that has gone into a loop


@dataclass(frozen=True)
class Sampling:
    """How tokens are sampled; `greedy` takes the most likely token instead.

    Among the first `min_new_tokens` tokens of a response, those that would end it have probability 0. `bias`: what is added to
    the logits (V,) of the first token of a response, and of all others.
    """

    max_new_tokens: int = 20
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_new_tokens: int = 0
    greedy: bool = False
    bias: tuple[Tensor, Tensor] | None = field(default=None, compare=False)

    @property
    def filtered(self) -> bool:
        return self.top_k > 0 or self.top_p < 1

    @property
    def settings(self) -> dict[str, Any]:
        """All but the bias, as JSON."""
        return {name: value for name, value in vars(self).items() if name != "bias"}

    def filters(self) -> LogitsProcessorList:
        """The library's own top-k and top-p filters; they set the logits of dropped tokens to -inf."""
        chain = LogitsProcessorList()
        if self.top_k > 0:
            chain.append(TopKLogitsWarper(self.top_k))
        if self.top_p < 1:
            chain.append(TopPLogitsWarper(self.top_p))
        return chain


def at_temperature(temperature: float | None, sampling: Sampling) -> Sampling:
    """The sampling at another temperature: greedy at 0, unchanged for None."""
    if temperature == 0:
        return replace(sampling, greedy=True)
    return sampling if temperature is None else replace(sampling, temperature=temperature, greedy=False)


def silent(text: str) -> None:
    """What hears how far a generation is where nobody looks."""


@dataclass(frozen=True)
class GenerationLimits:
    """Limits that change no sampled token: `rows_at_once` of the memory of the cache, `prompts_at_once` of reading prompts.

    After each `look_every` tokens the host looks which responses have ended; None: after each on a CPU, after 8 on a GPU, which
    it has to wait for. `tell` hears how far it is, `measure` times a block by name. `sizes` become smaller than these where
    memory runs out.
    """

    rows_at_once: int = 128
    prompts_at_once: int = 16
    look_every: int | None = None
    tell: Callable[[str], None] = silent
    measure: Callable[[str], AbstractContextManager[None]] = lambda name: nullcontext()
    sizes: PartSizes = field(default_factory=PartSizes)


@dataclass
class Responses:
    """Generated responses: `tokens` are the prompts with them, whose mask is True on every token, including the end token.

    `truncated` (B,), on the host, is True where the length limit ended the response. The rest is what the sampler knows, 0
    outside of the mask, else None. Of the policy, from our own sampler: `logprobs` and `entropy` (B, T) of the distribution that
    was sampled from, `values` (B, T) with a value head, and for a filtered rollout `features` (B, T, .), from which
    `policy.logits` computes the unfiltered logits. Of an engine: `sampled_logprobs` (B, T), of its own distribution.
    """

    tokens: TokenBatch
    truncated: Tensor
    logprobs: Tensor | None = None
    entropy: Tensor | None = None
    values: Tensor | None = None
    features: Tensor | None = None
    sampled_logprobs: Tensor | None = None


class StopRule:
    """A response ends with an end-of-text token of the model or tokenizer, or with the token that completes the separator.

    If `separator` is `chat_template`, the template's end-of-turn token takes its place. A separator is known by its ids where
    these are certain (`closing_ids`), else by the text. The token ids `also` end a response too. Raises UserError for a separator
    that the tokenizer does not give back, and for an id of `also` that it does not have.

    With `ends_loops`, a response also ends where it repeats 8 tokens three times: for chats, where nothing learns or measures.
    """

    def __init__(
        self,
        policy: Policy,
        tokenizer: PreTrainedTokenizerBase,
        separator: str,
        also: Sequence[int] = (),
        ends_loops: bool = False,
    ):
        self.ends_loops = ends_loops
        self.tokenizer = tokenizer
        self.separator = separator_of(tokenizer, separator)
        own = getattr(getattr(policy.lm, "generation_config", None), "eos_token_id", None)
        ends = {tokenizer.eos_token_id, *(own if isinstance(own, list) else [own])}
        closing = closing_ids(tokenizer, self.separator)
        if unknown := [i for i in also if i >= num_ids(tokenizer)]:
            raise UserError(
                f"stop_token_ids: {unknown[0]} is not a token: the tokenizer's ids end at {num_ids(tokenizer) - 1}; correct it"
            )
        self.end_ids = sorted({i for i in ends | closing if i is not None} | set(also))
        self.is_text = not closing
        self.tail = len(self.separator.encode()) + 4  # each token that is not special is at least one byte
        if self.is_text:
            self._check()

    def find_ends(self, ids: Tensor) -> Tensor:
        """Whether the newest token of each row of `ids` (B, t), on the host, ends its response: bool (B,)."""
        ends = torch.isin(ids[:, -1], torch.tensor(self.end_ids, dtype=ids.dtype))
        if self.is_text:
            ends |= torch.tensor(self._hold(ids[:, -self.tail :].tolist()))
        return ends | repeats(ids) if self.ends_loops else ends

    def without_ends(self, logits: Tensor, ids: Tensor) -> Tensor:
        """`logits` (B, V), -inf for the tokens that would end responses which began with `ids` (B, t)."""
        possible = [i for i in self.end_ids if i < logits.shape[1]]
        logits = logits.index_fill(1, send(torch.tensor(possible, dtype=torch.long), logits.device), -torch.inf)
        if self.is_text:
            (tails,) = fetch(ids[:, -self.tail :])
            for row, tail in enumerate(tails.tolist()):
                ends = compress(self._candidates, self._hold([[*tail, i] for i in self._candidates]))
                tokens = send(torch.tensor([*ends], dtype=torch.long), logits.device)
                logits[row].index_fill_(0, tokens, -torch.inf)
        return logits

    @cached_property
    def _candidates(self) -> list[int]:
        """All tokens that can complete the separator: they hold it, or begin with an end of it, or are parts of a letter."""
        texts = self.tokenizer.batch_decode([[i] for i in range(len(self.tokenizer))], skip_special_tokens=False)
        ends = tuple(self.separator[start:] for start in range(1, len(self.separator)))
        marks = (self.separator,) if self.separator.isascii() else (self.separator, "\ufffd")
        return [i for i, x in enumerate(texts) if x.startswith(ends) or any(mark in x for mark in marks)]

    def _hold(self, ids: list[list[int]]) -> list[bool]:
        """Whether the text of each row holds the separator."""
        return [self.separator in text for text in self.tokenizer.batch_decode(ids, skip_special_tokens=False)]

    def _check(self) -> None:
        """Raises UserError unless a reply ends with its separator, and not without it."""
        texts = (render_target("a b", self.separator), render_reply("a b"))
        closed, unclosed = (self.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts)
        if not self._hold([closed[-self.tail :]])[0]:
            read = self.tokenizer.decode(closed, skip_special_tokens=False)
            raise UserError(
                f"turn_separator: no response would end, because the tokenizer reads {texts[0]!r} as {read!r}; give a "
                f"text that it keeps, or add {self.separator!r} to it as a special token"
            )
        if self._hold([unclosed])[0]:
            raise UserError(
                f"turn_separator: {self.separator!r} is part of usual text, so a response would end at once; give "
                "another text, such as <EOU>"
            )


def repeats(ids: Tensor) -> Tensor:
    """Whether the newest 24 tokens of each row of `ids` (B, t) are the same 8 tokens three times: bool (B,)."""
    newest = ids[:, -LOOP * ROUNDS :]
    return (newest[:, LOOP:] == newest[:, :-LOOP]).all(dim=1) & (ids.shape[1] >= LOOP * ROUNDS)


class ResponseBuffer:
    """The responses of B rows, in columns on the device, and which tokens count, on the host.

    `rows` (b,) are those to which `put` writes, `ids` (B, T) what was written. The host asks the device only at a look; between
    two looks the rows that have ended go on unseen, and what they write is masked in the end.
    """

    def __init__(self, shape: torch.Size, pad_id: int, device: torch.device):
        self.pad_id = pad_id
        self.shape = shape
        self.rows, self.host_rows = torch.arange(shape[0], device=device), torch.arange(shape[0])
        self.alive = torch.ones(shape[0], dtype=torch.bool)  # (b,), on the host
        self.read, self.mask = torch.full(shape, pad_id), torch.zeros(shape, dtype=torch.bool)  # (B, T), on the host
        self.seen = 0  # tokens at the last look
        self.kept: list[Tensor] = []  # bool (b, V), of each token since then: what a filter left
        self.ids = torch.full(shape, pad_id, device=device)
        self._columns: dict[str, Tensor] = {"ids": self.ids}
        self._written = 0

    def put(self, t: int, columns: dict[str, Tensor]) -> None:
        """Write token t of the rows: of each column (b, ...)."""
        for name, x in columns.items():
            if name not in self._columns:
                self._columns[name] = x.new_zeros(*self.shape, *x.shape[1:])
            self._columns[name][self.rows, t] = x
        self._written = t + 1

    def look(self, ended: Callable[[Tensor], Tensor]) -> Tensor:
        """Read what was written since the last look; returns which of the rows go on: bool (b,), on the host.

        `ended` says of ids (b, t) whether the newest token of each row ends its response. Raises RunStopped when the
        policy's predictions are not finite.
        """
        new = slice(self.seen, self._written)
        ids, logprobs = (self._columns[name][:, new].index_select(0, self.rows) for name in ("ids", "logprobs"))
        ids, finite, *counts = fetch(ids, logprobs.isfinite().all(), *(kept.sum(dim=1) for kept in self.kept))
        if not finite:
            raise RunStopped(
                "the policy's predictions are not finite (NaN or inf), so no token can be sampled; its weights are not "
                "usable: go back to an earlier checkpoint, with a lower learning rate"
            )
        self.read[self.host_rows, new] = ids
        for t in range(self.seen, self._written):
            self.mask[self.host_rows, t] = self.alive
            self.alive = self.alive & ~ended(self.read[self.host_rows, : t + 1])
        if self.kept:
            self._put_support(counts)
        self.seen = self._written
        return self.alive

    def written(self, since: int) -> tuple[Tensor, Tensor, Tensor]:
        """Ids, mask and log-probabilities (B, n), on the host, of the tokens that were looked at after the first `since`."""
        new = slice(since, self.seen)
        (logprobs,) = fetch(self._columns["logprobs"][:, new])
        return self.read[:, new], self.mask[:, new], logprobs

    def _put_support(self, counts: list[Tensor]) -> None:
        """The kept ids of the new tokens, as wide as those that count need."""
        counted = self.mask[self.host_rows, self.seen : self._written]
        width = int(torch.stack(counts, dim=1)[counted].max())
        for t, kept in enumerate(self.kept, start=self.seen):
            x = ids_of(kept, width)
            if (column := self._columns.get("support")) is None:
                column = x.new_full((*self.shape, width), -1)
            elif width > column.shape[2]:
                column = pad(column, (0, width - column.shape[2]), value=-1)
            column[self.rows, t, :width] = x
            self._columns["support"] = column
        self.kept.clear()

    def keep_rows(self, rows: Tensor) -> Tensor:
        """Write no longer to the rows where `rows` (b,), on the host, is False; the indices of the others, on the device."""
        kept = send(rows.nonzero()[:, 0], self.rows.device)
        self.rows, self.host_rows, self.alive = self.rows.index_select(0, kept), self.host_rows[rows], self.alive[rows]
        return kept

    def columns(self) -> dict[str, Any]:
        """Ids, mask, support, and the other fields of Responses, as long as the longest response, empty outside of the mask."""
        mask = self.mask[:, : int(self.mask.sum(dim=1).max())]
        truncated = torch.zeros(len(mask), dtype=torch.bool)
        truncated[self.host_rows] = self.alive
        is_empty = send(~mask, self.rows.device)
        columns: dict[str, Any] = {"mask": mask, "truncated": truncated}
        for name, x in self._columns.items():
            x, empty = x[:, : mask.shape[1]], {"ids": self.pad_id, "support": -1}.get(name, 0)
            columns[name] = x.masked_fill_(is_empty.view(*mask.shape, *[1] * (x.dim() - 2)), empty)
        return columns


def ids_of(kept: Tensor, width: int) -> Tensor:
    """The first `width` ids that are True in each row of `kept` (b, V), padded with -1: (b, width)."""
    place = kept.cumsum(dim=1).sub_(1).clamp_(max=width)
    place.masked_fill_(~kept, width)  # into a column more
    ids = place.new_full((len(kept), width + 1), -1)
    numbers = torch.arange(kept.shape[1], device=kept.device).expand_as(kept)
    return ids.scatter_(1, place, numbers)[:, :width]


class PackedDecoder:
    """Rows of a model that packs, which grow by one token per step: computes no padding, and writes keys and values in place.

    `features` (b, .) and `values` (b,) belong to the newest tokens.
    """

    can_drop_rows = True

    def __init__(self, policy: Policy, prompts: TokenBatch, num_new: int, prompts_at_once: int):
        groups = prompts.prompt_groups
        first, number = (torch.arange(len(prompts)) if groups is None else leaders(groups)).unique(return_inverse=True)
        self.policy = policy
        self.cache = KeyValues(prompts.prompt_mask[first].sum(dim=1), num_new, prompts.device)
        parts = []
        for start in range(0, len(first), prompts_at_once):
            packed = prompts.rows(first[start : start + prompts_at_once]).pack_prompts()
            parts.append(policy.features(packed, self.cache, start))
        self.features = torch.cat([features for features, _ in parts])
        self.values = torch.cat([v for _, v in parts if v is not None]) if policy.value_head is not None else None
        if len(first) < len(number):
            self.cache.take(number)
            number = send(number, prompts.device)
            self.features = self.features.index_select(0, number)
            self.values = None if self.values is None else self.values.index_select(0, number)

    def step(self, tokens: Tensor) -> None:
        """Append one token (b,) to each row."""
        policy, cache = self.policy, self.cache
        with policy.autocast(tokens):
            with policy.body() as (module, of_head):
                features = run_packed(module, tokens, cache.lengths, Decoding(cache))[0]
            hidden = of_head[0] if of_head else features
        cache.grow()
        self.features = features[0]
        self.values = policy.values(hidden[0])

    def keep_rows(self, rows: Tensor) -> None:
        """Drop the rows where `rows` (b,), on the host, is False."""
        self.cache.take(rows.nonzero()[:, 0])


class PaddedDecoder:
    """As `PackedDecoder`, for models that do not pack: rows are padded on the left, and the model makes the cache."""

    can_drop_rows = False

    def __init__(self, policy: Policy, prompts: TokenBatch):
        self.policy = policy
        self.mask = prompts.prompt_mask.to(prompts.device)
        self.positions = position_ids_of(self.mask)
        self.cache: Any = None
        self._run(prompts.prompt_ids)

    def step(self, tokens: Tensor) -> None:
        self.mask = torch.cat([self.mask, torch.ones_like(self.mask[:, :1])], dim=1)
        self.positions = self.positions[:, -1:] + 1
        self._run(tokens.unsqueeze(1))

    def keep_rows(self, rows: Tensor) -> None:
        raise NotImplementedError("the cache belongs to the model")

    def _run(self, tokens: Tensor) -> None:
        options: dict[str, Any] = {"attention_mask": self.mask.long(), "past_key_values": self.cache, "use_cache": True}
        options |= supported_options(self.policy.lm, position_ids=self.positions)
        with self.policy.body() as (lm, of_head):
            output = lm(input_ids=tokens, **options)
        self.features = output.logits[:, -1]
        self.cache = output.past_key_values
        self.values = self.policy.values(of_head[0][:, -1]) if of_head else None


def random_numbers(
    rows: int, sampling: Sampling, device: torch.device, generator: torch.Generator | None = None
) -> Tensor:
    """What decides the tokens of `rows` responses (rows, T), in [0, 1), by default from torch's global random state."""
    return torch.rand(rows, sampling.max_new_tokens, dtype=torch.float64, device=device, generator=generator)


@dataclass(frozen=True)
class Reply:
    """One answer: the text that rewards and metrics see (cut at the separator, without special tokens, stripped), its ids.

    >>> Reply(text="Inside , please .", ids=[14, 10, 1449, 764, 50257], truncated=False)
    """

    text: str
    ids: list[int]  # of the policy, including its end token
    truncated: bool  # cut at `max_new_tokens`


@dataclass(eq=False)
class Responder:
    """A policy with everything it needs to answer: how turns become tokens and back, how tokens are sampled, when a reply ends.

    `context_size`: turns of a dialogue with an environment that a reply sees; None: all for which there is room.
    """

    policy: Policy
    encoder: TurnEncoder
    sampling: Sampling
    stop: StopRule
    limits: GenerationLimits = field(default_factory=GenerationLimits)
    context_size: int | None = None

    def encode(self, turns: Sequence[Sequence[str]], systems: Sequence[str | None] | None = None) -> TokenBatch:
        """The prompts of these turns, oldest first, behind their system messages, on the policy's device."""
        systems = systems or [None] * len(turns)
        return self.batch([self.encoder.encode_prompt(*row) for row in zip(turns, systems, strict=True)])

    def batch(self, ids: Sequence[Sequence[int]], prompt_groups: Tensor | None = None) -> TokenBatch:
        """As `encode`, for prompts that are already ids."""
        return TokenBatch.from_prompts(ids, self.encoder.pad_id, self.policy.lm.device, prompt_groups)

    def local(
        self, sampling: Sampling | None = None, limits: GenerationLimits | None = None, policy: Policy | None = None
    ) -> "Responder":
        """The responder with another sampling, limits or policy. It samples in this process, whatever the class of this one."""
        return Responder(
            policy or self.policy,
            self.encoder,
            sampling or self.sampling,
            self.stop,
            limits or self.limits,
            self.context_size,
        )

    @torch.no_grad()
    def generate(self, prompts: TokenBatch, uniform: Tensor | None = None) -> Responses:
        """Sample one response for each prompt, here with a key-value cache. A subclass may let another program sample.

        `uniform` (B, T): the `random_numbers` of these responses, by default drawn now from torch's global random state. Each
        token has its own, so no limit changes the tokens.
        """
        limits = self.limits
        uniform = random_numbers(len(prompts), self.sampling, prompts.device) if uniform is None else uniform
        parts: list[dict[str, Any]] = []
        start = 0
        while start < len(prompts) or not parts:
            limits.tell(f"{start} of {len(prompts)} responses")
            asked = min(limits.rows_at_once, max(len(prompts) - start, 1))
            for attempt in limits.sizes.tries(GENERATION, asked):
                with attempt:
                    rows = slice(start, start + attempt.rows)
                    columns = write_tokens(
                        self.policy, self.sampling, self.stop, limits, prompts.rows(rows), uniform[rows]
                    ).columns()
            parts.append(columns)
            start += len(columns["ids"])
        empty = {"ids": prompts.pad_id, "support": -1}
        columns = {name: join_rows([part[name] for part in parts], empty.get(name, 0)) for name in parts[0]}
        tokens = prompts.with_responses(columns.pop("ids"), columns.pop("mask"), columns.pop("support", None))
        return Responses(tokens, **columns)

    def read(self, responses: Responses) -> list[Reply]:
        """The responses as text, without masked tokens."""
        (ids,) = fetch(responses.tokens.response_ids)
        rows = [row[mask].tolist() for row, mask in zip(ids, responses.tokens.response_mask, strict=True)]
        ends = responses.truncated.tolist()
        return [Reply(self.encoder.reply_text(row), row, end) for row, end in zip(rows, ends, strict=True)]

    def reply(self, dialogues: Sequence[Dialogue], uniform: Tensor | None = None) -> list[Reply]:
        """Answer each dialogue after all that has been said in it."""
        turns = [[*d.prompt_turns, *(turn.text for turn in d.turns)] for d in dialogues]
        return self.read(self.generate(self.encode(turns, [d.system for d in dialogues]), uniform))


def write_tokens(
    policy: Policy,
    sampling: Sampling,
    stop: StopRule,
    limits: GenerationLimits,
    prompts: TokenBatch,
    uniform: Tensor,
    goes_on: Callable[[ResponseBuffer], bool] | None = None,
) -> ResponseBuffer:
    """The responses (B, T) to the prompts, as their random numbers `uniform` decide.

    Rows that have ended are dropped when they are at least half of all. With `goes_on` the host looks after each token, and asks
    whether there is to be another one.
    """
    buffer = ResponseBuffer(uniform.shape, prompts.pad_id, prompts.device)
    look_every = 1 if goes_on else limits.look_every or (LOOK_EVERY if prompts.device.type == "cuda" else 1)
    limit = uniform.shape[1]
    filters = sampling.filters()
    with policy.autocast(prompts.prompt_ids), converted_once(policy) if policy.use_amp else nullcontext():
        if packs(policy.lm):
            decoder: PackedDecoder | PaddedDecoder = PackedDecoder(policy, prompts, limit, limits.prompts_at_once)
        else:
            decoder = PaddedDecoder(policy, prompts)
        head = policy.head()
        for t in range(limit):
            logits = head(decoder.features)
            ids = buffer.ids.index_select(0, buffer.rows) if t < sampling.min_new_tokens else buffer.ids
            scores = scores_of(logits, ids, t, sampling, stop, filters)
            probabilities = scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))
            total: Tensor | float = 1.0  # what they add up to, because of rounding
            if sampling.greedy:
                tokens = scores.argmax(dim=-1)
            else:
                tokens, total = _draw(probabilities, uniform[:, t])
            chosen = tokens.unsqueeze(1)
            logprobs = (probabilities.gather(1, chosen).squeeze(1) / total).log().to(probabilities.dtype)
            log_total = scores.gather(1, chosen).squeeze(1) - logprobs
            products = probabilities.mul_(scores)  # nan where the probability is 0 and the score -inf
            entropy = log_total - (products.nansum(dim=-1) / total).to(probabilities.dtype)
            columns = {"ids": tokens, "logprobs": logprobs, "entropy": entropy}
            columns |= {} if decoder.values is None else {"values": decoder.values}
            buffer.put(t, columns | ({"features": decoder.features} if sampling.filtered else {}))
            if sampling.filtered:
                buffer.kept.append(scores.isfinite())
            if (t + 1) % look_every == 0 or t + 1 == limit:
                alive = buffer.look(stop.find_ends)
                if (goes_on and not goes_on(buffer)) or t + 1 == limit or not alive.any():
                    break
                if decoder.can_drop_rows and 2 * alive.sum() <= len(alive):
                    decoder.keep_rows(alive)
                    kept = buffer.keep_rows(alive)
                    tokens, uniform = tokens.index_select(0, kept), uniform.index_select(0, kept)
            decoder.step(tokens)
    return buffer


def scores_of(
    logits: Tensor, ids: Tensor, t: int, sampling: Sampling, stop: StopRule, filters: LogitsProcessorList
) -> Tensor:
    """The scores (b, V) from which token t of the responses is drawn; `ids` (b, .) begin with the tokens before it.

    They are the logits themselves where nothing is to be done, else at least float32.
    """
    is_plain = sampling.bias is None and t >= sampling.min_new_tokens and not sampling.filtered
    if is_plain and sampling.temperature == 1:
        return logits
    logits = at_least_float32(logits)
    if sampling.bias is not None:
        logits = logits + sampling.bias[min(t, 1)]
    if t < sampling.min_new_tokens:
        logits = stop.without_ends(logits, ids[:, :t])
    logits = logits if sampling.temperature == 1 else logits / sampling.temperature
    return filters(ids, logits)  # type: ignore[arg-type]


def _draw(probabilities: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """One token id for each row of `probabilities` (b, V), (b,), and what the row adds up to, (b,).

    It is the token at which the cumulative probability passes the random number `uniform` (b,) in [0, 1). Of a row that is not
    finite, any token.
    """
    cumulated = probabilities.cumsum(dim=-1, dtype=torch.float64)
    total = cumulated[:, -1]
    drawn = torch.searchsorted(cumulated, (uniform * total).unsqueeze(1), right=True).squeeze(1)
    return drawn.clamp_(max=probabilities.shape[1] - 1), total


def join_rows(parts: list[Tensor], empty: int) -> Tensor:
    """The rows of all parts as one tensor, padded with `empty` to the same size in all dimensions but the first."""
    if len(parts) == 1:
        return parts[0]
    widest = [max(sizes) for sizes in zip(*(x.shape for x in parts), strict=True)]
    sizes = [list(zip(x.shape, widest, strict=True))[:0:-1] for x in parts]  # `pad` begins with the last dimension
    paddings = [[n for size, largest in pairs for n in (0, largest - size)] for pairs in sizes]
    return torch.cat([pad(x, padding, value=empty) for x, padding in zip(parts, paddings, strict=True)])
