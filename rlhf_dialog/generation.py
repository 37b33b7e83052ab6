"""Two verbs: `respond` samples responses, `evaluate` gives the log-probabilities and values of responses that exist.

B episodes, P prompt tokens (padded left), T response tokens (padded right), V vocabulary, K kept tokens of a filter.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase
from transformers.generation import LogitsProcessorList, TopKLogitsWarper, TopPLogitsWarper

from rlhf_dialog.chat_template import closing_id
from rlhf_dialog.errors import RunStopped
from rlhf_dialog.models import Critic, Policy, position_ids_of
from rlhf_dialog.ppo import last_token


@dataclass(frozen=True)
class Sampling:
    """How responses are drawn; `greedy` takes the most likely token."""

    max_new_tokens: int = 20
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_new_tokens: int = 0
    greedy: bool = False

    @property
    def filtered(self) -> bool:
        return self.top_k > 0 or self.top_p < 1

    def filters(self) -> LogitsProcessorList:
        """The library's own definition of the filters; they set what they leave out to -inf."""
        chain = LogitsProcessorList()
        if self.top_k > 0:
            chain.append(TopKLogitsWarper(self.top_k))
        if self.top_p < 1:
            chain.append(TopPLogitsWarper(self.top_p))
        return chain


@dataclass
class Responses:
    """What `respond` wrote.

    `ids` (B, T) padded right; `mask` (B, T) True on every token of the response, its end token too; `support` (B, T, K) the
    kept token ids of each position padded with -1, or None when nothing was filtered; `truncated` (B,) True where the length
    limit ended the response.
    """

    ids: Tensor
    mask: Tensor
    support: Tensor | None
    truncated: Tensor


class StopRule:
    """A response ends with an end-of-text token of model or tokenizer, or with the token that completes the separator.

    `separator` may be `chat_template`: then the template's end-of-turn token ends it.
    """

    def __init__(self, policy: Policy, tokenizer: PreTrainedTokenizerBase, separator: str):
        self.tokenizer, self.separator = tokenizer, separator
        own = policy.lm.generation_config.eos_token_id if policy.lm.generation_config else None
        ends = {tokenizer.eos_token_id, *(own if isinstance(own, list) else [own])}
        self.separator_id = closing_id(tokenizer, separator)
        self.end_ids = sorted(i for i in ends | {self.separator_id} if i is not None)
        self.tail = len(separator.encode()) + 4  # a token that is not special stands for at least one byte

    def ended(self, ids: Tensor) -> Tensor:
        """Whether the newest token of each row of `ids` (B, t) ends its response: bool (B,)."""
        newest = torch.isin(ids[:, -1], torch.tensor(self.end_ids, device=ids.device, dtype=ids.dtype))
        if self.separator_id is not None:
            return newest
        texts = self.tokenizer.batch_decode(ids[:, -self.tail :], skip_special_tokens=False)
        return newest | torch.tensor([self.separator in text for text in texts], device=ids.device)


@torch.no_grad()
def respond(
    policy: Policy, prompt_ids: Tensor, prompt_mask: Tensor, sampling: Sampling, stop: StopRule, pad_id: int
) -> Responses:
    """Sample one response for each prompt (B, P), with a key-value cache, from torch's global random state."""
    batch = len(prompt_ids)
    mask, tokens, position_ids = prompt_mask, prompt_ids, position_ids_of(prompt_mask)
    alive = torch.ones(batch, dtype=torch.bool, device=prompt_ids.device)
    ids = prompt_ids.new_empty((batch, 0))
    masks: list[Tensor] = []
    supports: list[Tensor] = []
    filters, cache = sampling.filters(), None
    while alive.any() and len(masks) < sampling.max_new_tokens:
        output = policy.run(tokens, mask, position_ids, num_last=1, past_key_values=cache, use_cache=True)
        logits, cache = output.logits[:, -1].float(), output.past_key_values
        if len(masks) < sampling.min_new_tokens:
            logits[:, stop.end_ids] = -torch.inf
        scores = filters(ids, logits / sampling.temperature)  # type: ignore[arg-type]
        tokens = _draw(scores, sampling.greedy)
        tokens = torch.where(alive.unsqueeze(1), tokens, pad_id)
        if sampling.filtered:
            supports.append(_kept(scores))
        ids = torch.cat([ids, tokens], dim=1)
        masks.append(alive)
        mask = torch.cat([mask, torch.ones_like(alive).unsqueeze(1)], dim=1)
        position_ids = position_ids[:, -1:] + 1
        alive = alive & ~stop.ended(ids)
    support = _stack_supports(supports) if sampling.filtered else None
    return Responses(ids, torch.stack(masks, dim=1), support, truncated=alive)


def _draw(scores: Tensor, greedy: bool) -> Tensor:
    """One token id for each row of `scores` (B, V): (B, 1). Raises RunStopped when a row has no finite maximum."""
    if not scores.amax(dim=-1).isfinite().all():  # a NaN is its row's maximum
        raise RunStopped(
            "the policy's predictions are not finite (NaN or inf), so it cannot write a token; its weights have gone bad: go "
            "back to an earlier checkpoint, with a lower learning rate"
        )
    return scores.argmax(dim=-1, keepdim=True) if greedy else torch.multinomial(scores.softmax(dim=-1), num_samples=1)


def _kept(scores: Tensor) -> Tensor:
    """Ids of the finite scores of each row, padded with -1: (B, K)."""
    kept = scores.isfinite()
    order = kept.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[:, : int(kept.sum(dim=-1).max())]
    return torch.where(kept.gather(1, order), order, -1)


def _stack_supports(supports: list[Tensor]) -> Tensor:
    width = max(step.shape[1] for step in supports)
    return torch.stack(
        [torch.nn.functional.pad(step, (0, width - step.shape[1]), value=-1) for step in supports], dim=1
    )


@dataclass(frozen=True)
class Microbatch:
    """Which episodes one forward pass sees, and which columns of their prompts and responses are not all padding."""

    rows: Tensor
    prompt: slice
    response: slice


@dataclass
class Evaluation:
    """What `evaluate` found, each (B, T); `values` is None for a policy without a value head."""

    logprobs: Tensor
    entropy: Tensor
    values: Tensor | None


def evaluate(
    policy: Policy,
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    response_ids: Tensor,
    temperature: float,
    support: Tensor | None = None,
) -> Evaluation:
    """Teacher-forced log-probabilities of given responses, under the distribution that they were sampled from.

    Alignment, here and everywhere: position t of `logprobs` is the log-probability of response token t given all before it,
    and position t of `values` is the value before that token. Padding on the right needs no mask: no token looks ahead.
    """
    logits, values = policy(*joined(prompt_ids, prompt_mask, response_ids), response_ids.shape[1] + 1)
    logits = logits[:, :-1] / temperature
    chosen = logits.gather(2, response_ids.unsqueeze(2)).squeeze(2)
    if support is not None:
        logits = on_support(logits, support)
    whole = logits.logsumexp(dim=-1)
    probabilities = (logits - whole.unsqueeze(2)).exp()
    entropy = whole - (probabilities * logits.masked_fill(probabilities == 0, 0.0)).sum(dim=-1)
    return Evaluation(chosen - whole, entropy, None if values is None else values[:, :-1])


def on_support(logits: Tensor, support: Tensor) -> Tensor:
    """The logits (B, T, K) of the kept tokens; -inf where the support is padded with -1."""
    return logits.gather(2, support.clamp(min=0)).masked_fill(support < 0, -torch.inf)


@torch.no_grad()
def compare_unfiltered(
    policy: Policy,
    ref_policy: Policy,
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    response_ids: Tensor,
    temperature: float,
    support: Tensor,
) -> tuple[Tensor, Tensor]:
    """What a KL on the support cannot see, two tensors (B, T): the exact KL divergence of the unfiltered policy from the
    unfiltered reference at each position, and the probability that the reference gives to the support."""
    sequence, num_last = joined(prompt_ids, prompt_mask, response_ids), response_ids.shape[1] + 1
    ours, theirs = (
        (model(*sequence, num_last)[0][:, :-1] / temperature).log_softmax(-1) for model in (policy, ref_policy)
    )
    return (ours.exp() * (ours - theirs)).sum(dim=-1), on_support(theirs, support).exp().sum(dim=-1)


def evaluate_values(critic: Critic, prompt_ids: Tensor, prompt_mask: Tensor, response_ids: Tensor) -> Tensor:
    """The values (B, T) of a separate critic, aligned as in `evaluate`."""
    return critic(*joined(prompt_ids, prompt_mask, response_ids), response_ids.shape[1] + 1)[:, :-1]


def joined(prompt_ids: Tensor, prompt_mask: Tensor, response_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Prompt and response as one sequence (B, P + T) and the mask of what can be attended to."""
    mask = torch.cat([prompt_mask, torch.ones_like(response_ids, dtype=torch.bool)], dim=1)
    return torch.cat([prompt_ids, response_ids], dim=1), mask


def microbatches(prompt_mask: Tensor, response_mask: Tensor, rows: Tensor, size: int) -> Iterator[Microbatch]:
    """Share out `rows` (N,) in microbatches of at most `size` episodes of similar length, without needless padding."""
    lengths = prompt_mask[rows].sum(dim=1) + last_token(response_mask[rows]) + 1
    for part in rows[lengths.argsort(stable=True)].split(size):
        start = int(prompt_mask[part].any(dim=0).int().argmax())
        width = int(last_token(response_mask[part]).max()) + 1
        yield Microbatch(part, slice(start, None), slice(0, width))
