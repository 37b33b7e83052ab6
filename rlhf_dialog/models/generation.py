"""`respond` samples responses; `teacher_forced` computes the log-probabilities and values of given responses.

B episodes, P prompt tokens (padded left), T response tokens (padded right), V vocabulary, K kept tokens of a filter.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import compress
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedTokenizerBase
from transformers.generation import LogitsProcessorList, TopKLogitsWarper, TopPLogitsWarper

from rlhf_dialog.data.chat_template import closing_ids
from rlhf_dialog.data.dialogue import render_reply, render_target
from rlhf_dialog.errors import UserError
from rlhf_dialog.models.decoding import Decoder, new_decoder
from rlhf_dialog.models.device_copies import fetch, send, send_all
from rlhf_dialog.models.logprobs import at_least_float32, on_support
from rlhf_dialog.models.packed_rows import pack
from rlhf_dialog.models.policy import Policy, in_chunks
from rlhf_dialog.models.precision import converted_once
from rlhf_dialog.models.pretrained import num_ids
from rlhf_dialog.models.response_buffer import ResponseBuffer

LOOK_EVERY = 8  # tokens, on a GPU


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
    if temperature is None:
        return sampling
    return (
        replace(sampling, greedy=True) if temperature == 0 else replace(sampling, temperature=temperature, greedy=False)
    )


@dataclass
class Responses:
    """The responses that `respond` generated.

    `ids` (B, T) padded right; `mask` (B, T) True on every token of the response, including its end token; `support` (B, T, K)
    the kept token ids of each position padded with -1, or None when nothing was filtered; `truncated` (B,) True where the
    length limit ended the response. From the policy, 0 outside of the mask: `logprobs` and `entropy` (B, T) of the
    distribution that was sampled from, `values` (B, T) or None without a value head, and for a filtered rollout `features`
    (B, T, .), from which `policy.logits` computes the unfiltered logits.
    """

    ids: Tensor
    mask: Tensor
    truncated: Tensor
    logprobs: Tensor
    entropy: Tensor
    values: Tensor | None = None
    support: Tensor | None = None
    features: Tensor | None = None


class StopRule:
    """A response ends with an end-of-text token of the model or tokenizer, or with the token that completes the separator.

    If `separator` is `chat_template`, the template's end-of-turn token takes the place of the separator. A separator is known
    by its ids where these are certain (`separator_ids`), else by the text. The token ids `also` end a response too. Raises
    UserError for a separator that the tokenizer does not give back, and for an id of `also` that it does not have.
    """

    def __init__(self, policy: Policy, tokenizer: PreTrainedTokenizerBase, separator: str, also: Sequence[int] = ()):
        self.tokenizer, self.separator = tokenizer, separator
        own = getattr(getattr(policy.lm, "generation_config", None), "eos_token_id", None)
        ends = {tokenizer.eos_token_id, *(own if isinstance(own, list) else [own])}
        closing = closing_ids(tokenizer, separator)
        if unknown := [i for i in also if i >= num_ids(tokenizer)]:
            raise UserError(
                f"stop_token_ids: {unknown[0]} is not a token: the tokenizer's ids end at {num_ids(tokenizer) - 1}; correct it"
            )
        self.end_ids = sorted({i for i in ends | closing if i is not None} | set(also))
        self.is_text = not closing
        self._ends: dict[torch.device, Tensor] = {}  # the ids, on each device that asked
        self.tail = len(separator.encode()) + 4  # each token that is not special is at least one byte
        if self.is_text:
            self._check()

    def ended(self, ids: Tensor) -> Tensor:
        """Whether the newest token of each row of `ids` (B, t), on the host, ends its response: bool (B,)."""
        newest = torch.isin(ids[:, -1], torch.tensor(self.end_ids, dtype=ids.dtype))
        if not self.is_text:
            return newest
        return newest | torch.tensor(self._hold(ids[:, -self.tail :].tolist()))

    def without_ends(self, logits: Tensor, ids: Tensor) -> Tensor:
        """`logits` (B, V), -inf for the tokens that would end responses which began with `ids` (B, t)."""
        if logits.device not in self._ends:
            self._ends[logits.device] = send(torch.tensor(self.end_ids, dtype=torch.long), logits.device)
        logits = logits.index_fill(1, self._ends[logits.device], -torch.inf)
        if self.is_text:
            (tails,) = fetch(ids[:, -self.tail :])
            held = [self._hold([[*row, i] for i in self._candidates]) for row in tails.tolist()]
            places = [(row, i) for row, ends in enumerate(held) for i in compress(self._candidates, ends)]
            found = torch.tensor(places, dtype=torch.long).view(-1, 2)
            rows, tokens = send_all([found[:, 0], found[:, 1]], logits.device)
            logits.index_put_((rows, tokens), logits.new_full((), -torch.inf))
        return logits

    @cached_property
    def _candidates(self) -> list[int]:
        """All tokens that can complete the separator: they hold it, or begin with an end of it, or are parts of a letter."""
        texts = self.tokenizer.batch_decode([[i] for i in range(len(self.tokenizer))], skip_special_tokens=False)
        ends = tuple(self.separator[start:] for start in range(1, len(self.separator)))
        parts = "" if self.separator.isascii() else "\ufffd"
        return [
            i
            for i, text in enumerate(texts)
            if self.separator in text or text.startswith(ends) or (parts and parts in text)
        ]

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


def random_numbers(
    rows: int, sampling: Sampling, device: torch.device, generator: torch.Generator | None = None
) -> Tensor:
    """What decides the tokens of `rows` responses (rows, T), in [0, 1), by default from torch's global random state."""
    return torch.rand(rows, sampling.max_new_tokens, dtype=torch.float64, device=device, generator=generator)


@torch.no_grad()
def respond(
    policy: Policy,
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    sampling: Sampling,
    stop: StopRule,
    pad_id: int,
    rows_at_once: int = 128,
    prompts_at_once: int = 16,
    look_every: int | None = None,
    uniform: Tensor | None = None,
    prompt_numbers: Tensor | None = None,
) -> Responses:
    """Sample one response for each prompt (B, P), with a key-value cache, from torch's global random state.

    `uniform` (B, T): the `random_numbers` of these responses, if they are not to be drawn now. Rows with the same of
    `prompt_numbers` (B,), on the host, have the same prompt, which is read once for those of `rows_at_once`.

    `rows_at_once` limits the memory of the cache, `prompts_at_once` that of reading the prompts. After each `look_every` tokens
    the host looks which responses have ended; by default after each on a CPU, and after 8 on a GPU, which it has to wait for.
    None of them changes the sampled tokens, because each token has its own random number. The mask may lie on the host.
    """
    device = prompt_ids.device
    uniform = random_numbers(len(prompt_ids), sampling, device) if uniform is None else uniform
    look_every = look_every or (LOOK_EVERY if device.type == "cuda" else 1)
    (prompt_mask,) = fetch(prompt_mask)
    written = []
    for start in range(0, len(prompt_ids), rows_at_once):
        rows = slice(start, start + rows_at_once)
        sheet = ResponseBuffer(uniform[rows].shape, pad_id, device)
        with sampling_context(policy, prompt_ids):
            decoder = new_decoder(
                policy,
                prompt_ids[rows],
                prompt_mask[rows],
                sampling.max_new_tokens,
                prompts_at_once,
                None if prompt_numbers is None else prompt_numbers[rows],
            )
            for _ in write_tokens(sheet, decoder, uniform[rows], sampling, stop, look_every):
                pass
        written.append(Responses(**sheet.columns()))
    return _joined(written, pad_id)


@contextmanager
def sampling_context(policy: Policy, like: Tensor) -> Iterator[None]:
    """The precision in which `policy` samples, on the device of `like`."""
    with policy.autocast(like), converted_once(policy) if policy.use_amp else nullcontext():
        yield


def write_tokens(
    sheet: ResponseBuffer, decoder: Decoder, uniform: Tensor, sampling: Sampling, stop: StopRule, look_every: int
) -> Iterator[None]:
    """Write the responses of the decoder's rows, with a pause after each look at what was written.

    Rows that have ended are dropped when they are at least half of all.
    """
    limit, filters = uniform.shape[1], sampling.filters()
    for t in range(limit):
        logits = at_least_float32(decoder.policy.logits(decoder.features))
        ids = sheet.ids.index_select(0, sheet.rows) if t < sampling.min_new_tokens else sheet.ids
        scores = scores_of(logits, ids, t, sampling, stop, filters)
        tokens = _draw(scores, None if sampling.greedy else uniform[:, t])
        sheet.put(t, {"ids": tokens} | _statistics(decoder, scores, tokens, sampling.filtered))
        if sampling.filtered:
            sheet.kept.append(scores.isfinite())
        if (t + 1) % look_every == 0 or t + 1 == limit:
            alive = sheet.look(stop.ended)
            yield
            if t + 1 == limit or not alive.any():
                break
            if decoder.can_drop_rows and 2 * alive.sum() <= len(alive):
                decoder.keep_rows(alive)
                kept = sheet.keep_rows(alive)
                tokens, uniform = tokens.index_select(0, kept), uniform.index_select(0, kept)
        decoder.step(tokens)


def scores_of(
    logits: Tensor, ids: Tensor, t: int, sampling: Sampling, stop: StopRule, filters: LogitsProcessorList
) -> Tensor:
    """The scores (b, V) from which token t of the responses is drawn; `ids` (b, .) begin with the tokens before it."""
    if sampling.bias is not None:
        logits = logits + sampling.bias[min(t, 1)]
    if t < sampling.min_new_tokens:
        logits = stop.without_ends(logits, ids[:, :t])
    return filters(ids, logits / sampling.temperature)  # type: ignore[arg-type]


def _statistics(decoder: Decoder, scores: Tensor, tokens: Tensor, filtered: bool) -> dict[str, Tensor]:
    """Log-probabilities, entropies and the other columns of Responses for `tokens` (b,) drawn from `scores` (b, V)."""
    whole = scores.logsumexp(dim=-1)
    probabilities = (scores - whole.unsqueeze(1)).exp_()
    statistics = {
        "logprobs": scores.gather(1, tokens.unsqueeze(1)).squeeze(1) - whole,
        "entropy": whole - probabilities.mul_(scores).nan_to_num_(nan=0.0).sum(dim=-1),
    }
    if decoder.values is not None:
        statistics["values"] = decoder.values
    return statistics | ({"features": decoder.features} if filtered else {})


def _draw(scores: Tensor, uniform: Tensor | None) -> Tensor:
    """One token id for each row of `scores` (b, V): (b,).

    It is the token at which the cumulative probability passes the random number `uniform` (b,) in [0, 1); with None, the most
    likely token. Of a row that is not finite, any token.
    """
    if uniform is None:
        return scores.argmax(dim=-1)
    cumulated = scores.softmax(dim=-1).cumsum(dim=-1, dtype=torch.float64)
    drawn = torch.searchsorted(cumulated, uniform.unsqueeze(1) * cumulated[:, -1:], right=True).squeeze(1)
    return drawn.clamp_(max=scores.shape[1] - 1)


def _joined(parts: list[Responses], pad_id: int) -> Responses:
    """All parts as one, padded to the widest."""
    if len(parts) == 1:
        return parts[0]
    empty = {"ids": pad_id, "support": -1}
    columns: dict[str, Tensor | None] = {}
    for name in (column.name for column in fields(Responses)):
        found = [getattr(part, name) for part in parts]
        columns[name] = None if found[0] is None else torch.cat(as_wide(found, empty.get(name, 0)))
    return Responses(**columns)  # type: ignore[arg-type]


def as_wide(tensors: list[Tensor], empty: int) -> list[Tensor]:
    """The tensors, padded with `empty` to the same size in all dimensions but the first."""
    widest = [max(sizes) for sizes in zip(*(x.shape for x in tensors), strict=True)]
    return [pad(x, _padding(x.shape, widest), value=empty) for x in tensors]


def _padding(shape: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """The argument of `pad` that fills `shape` up to `wanted` in all dimensions but the first; the last dimension comes first."""
    padding: list[int] = []
    for size, wanted_size in list(zip(shape, wanted, strict=True))[:0:-1]:
        padding += [0, wanted_size - size]
    return padding


@dataclass
class TeacherForced:
    """The result of `teacher_forced`, each (B, T), 0 outside of the mask; None if not asked for or without a value head."""

    logprobs: Tensor
    entropy: Tensor | None
    values: Tensor | None
    kl: Tensor | None


def teacher_forced(
    policy: Callable[..., Any],
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    response_ids: Tensor,
    response_mask: Tensor,
    temperature: float,
    support: Tensor | None = None,
    with_entropy: bool = True,
    toward: tuple[Policy, Tensor] | None = None,
    prompt_numbers: Tensor | None = None,
) -> TeacherForced:
    """Teacher-forced log-probabilities of given responses, under the distribution that they were sampled from.

    `toward`: a reference and its features (B, T, .) on the same tokens; then `kl` is the exact KL divergence from it.

    Alignment, here and everywhere: position t of `logprobs` is the log-probability of response token t given all before it,
    and position t of `values` is the value before that token. `policy` is a Policy, or a module that wraps one. The masks may
    lie on the host; then the host does not wait for a GPU. `prompt_numbers` as in `pack`.
    """
    packed = pack(prompt_ids, prompt_mask, response_ids, response_mask, prompt_numbers)
    reference = None if toward is None else (toward[0], packed.gather(toward[1]))
    kept = None if support is None else packed.gather(support)
    found = policy(packed, temperature, kept, with_entropy, reference)
    return TeacherForced(*(None if x is None else packed.scatter(x) for x in found))  # type: ignore[arg-type]


def teacher_forced_values(
    critic: Callable[..., Any],
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    response_ids: Tensor,
    response_mask: Tensor,
    prompt_numbers: Tensor | None = None,
) -> Tensor:
    """The values (B, T) of a separate critic, with inputs and alignment as in `teacher_forced`."""
    packed = pack(prompt_ids, prompt_mask, response_ids, response_mask, prompt_numbers)
    return packed.scatter(critic(packed))


@torch.no_grad()
def compare_unfiltered(
    policy: Policy, features: Tensor, ref_policy: Policy, ref_features: Tensor, temperature: float, support: Tensor
) -> tuple[Tensor, Tensor]:
    """What a KL on the support (K, S) does not show, two tensors (K,): the exact KL divergence of the unfiltered policy from
    the unfiltered reference at each position, and the probability that the reference gives to the support."""

    def part(features: Tensor, ref_features: Tensor, support: Tensor) -> tuple[Tensor, Tensor]:
        ours = at_least_float32(policy.logits(features)).div(temperature).log_softmax(-1)
        theirs = at_least_float32(ref_policy.logits(ref_features)).div(temperature).log_softmax(-1)
        return (ours.exp() * (ours - theirs)).sum(dim=-1), on_support(theirs, support).exp().sum(dim=-1)

    return in_chunks(part, policy.positions_at_once, features, ref_features, support)
