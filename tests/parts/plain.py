"""The plain path, which the fast ones must equal: padded rows, all logits, masks, and autograd through it all.

B episodes, P prompt tokens (padded left), T response tokens (padded right), V vocabulary, S kept tokens of a filter.
"""

import copy
import inspect
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlhf_dialog.models.policy import Critic, Policy
from rlhf_dialog.models.token_batch import TokenBatch
from rlhf_dialog.training import ppo


@dataclass
class Case:
    """Episodes of random lengths: prompts and responses with their masks, and a support (B, T, S) or None."""

    prompt_ids: Tensor
    prompt_mask: Tensor
    response_ids: Tensor
    response_mask: Tensor
    support: Tensor | None = None
    groups: Tensor | None = None  # rows of one number share their prompt

    def to(self, device: Any) -> "Case":
        """The same on another device."""
        return Case(*(x if x is None else x.to(device) for x in (*self.inputs, self.support)), self.groups)

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.prompt_ids, self.prompt_mask, self.response_ids, self.response_mask

    @property
    def tokens(self) -> TokenBatch:
        return TokenBatch(*self.inputs, self.groups, self.support)


def new_case(seed: int, rows: int = 4, filtered: bool = False, holes: bool = True) -> Case:
    """Prompts of 1 to 7 tokens and responses of 1 to 6 among random padding, one row of each a single token long."""
    g, vocabulary = torch.Generator().manual_seed(seed), 61

    def between(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=g)

    prompt_lengths, response_lengths = between(1, 8, rows), between(1, 7, rows)
    prompt_lengths[seed % rows] = response_lengths[(seed // 2) % rows] = 1
    width, limit = int(prompt_lengths.max()) + seed % 3, int(response_lengths.max()) + seed % 2
    prompt_mask = torch.arange(width) >= width - prompt_lengths.unsqueeze(1)
    response_mask = torch.arange(limit) < response_lengths.unsqueeze(1)
    if holes:
        gaps = torch.rand(rows, width, generator=g) < 0.2
        gaps[:, -1] = False  # every prompt has a last token
        prompt_mask &= ~gaps
        response_mask &= torch.rand(rows, limit, generator=g) > 0.25
    response_mask[0, -1 if holes else 0] = True  # at least one counts
    prompt_ids, response_ids = between(2, vocabulary, rows, width), between(2, vocabulary, rows, limit)
    support = None
    if filtered:
        order = torch.rand(rows, limit, vocabulary, generator=g).argsort(dim=-1)
        order = torch.cat(
            [response_ids.unsqueeze(2), order[order != response_ids.unsqueeze(2)].view(rows, limit, -1)], 2
        )
        sizes = between(1, 9, rows, limit, 1)  # 1: the response token alone
        support = torch.where(torch.arange(9) < sizes, order[:, :, :9], -1)
    return Case(prompt_ids, prompt_mask, response_ids, response_mask, support)


def sharing(case: Case, seed: int) -> Case:
    """The same with prompts that some rows share."""
    g = torch.Generator().manual_seed(seed)
    first = torch.randint(0, max(1, len(case.prompt_ids) // 2), (len(case.prompt_ids),), generator=g)
    return replace(case, prompt_ids=case.prompt_ids[first], prompt_mask=case.prompt_mask[first], groups=first)


def compute_in_float64(monkeypatch: Any) -> None:
    """Also what a model computes in float32 in any case: norms add up there, and rows that share tokens add up elsewhere."""
    to = Tensor.to

    def wider(self: Tensor, *args: Any, **options: Any) -> Tensor:
        return to(self, *(torch.float64 if x is torch.float32 else x for x in args), **options)

    monkeypatch.setattr(Tensor, "to", wider)
    monkeypatch.setattr(Tensor, "float", Tensor.double)


def as_made(module: nn.Module) -> nn.Module:
    """A copy with the attention of transformers."""
    module = copy.deepcopy(module)
    for part in module.modules():
        if isinstance(part, PreTrainedModel):
            part.set_attn_implementation("sdpa")
            break
    return module


def without_gaps(case: Case) -> Case:
    """The same with each prompt's tokens side by side: a window of attention is one of tokens, not of columns."""
    order = case.prompt_mask.int().argsort(dim=1, stable=True)
    return replace(case, prompt_ids=case.prompt_ids.gather(1, order), prompt_mask=case.prompt_mask.gather(1, order))


def called(lm: nn.Module, case: Case, **options: Any) -> Any:
    """The output of a model for prompt and response (B, P + T), padded on the left, as transformers is usually called."""
    if getattr(lm.config, "sliding_window", None):
        case = without_gaps(case)
    ids = torch.cat([case.prompt_ids, case.response_ids], dim=1)
    mask = torch.cat([case.prompt_mask, torch.ones_like(case.response_mask)], dim=1).long()
    if "position_ids" in inspect.signature(lm.forward).parameters:
        options["position_ids"] = (mask.cumsum(dim=1) - 1).clamp(min=0)
    return lm(input_ids=ids, attention_mask=mask, use_cache=False, **options)


def all_logits(policy: Policy, case: Case) -> tuple[Tensor, Tensor]:
    """Logits (B, T, V) before each response token and last hidden states (B, T, H)."""
    inputs: list[Tensor] = []
    head = policy.lm.get_output_embeddings()
    with head.register_forward_pre_hook(lambda _, args: inputs.append(args[0])):
        logits = called(policy.lm, case).logits
    before = slice(-case.response_ids.shape[1] - 1, -1)
    return logits[:, before], inputs[0][:, before]


def distribution(logits: Tensor, temperature: float, support: Tensor | None) -> Tensor:
    """Log-probabilities (B, T, V); the tokens that no support keeps have almost none."""
    scaled = (logits.float() if logits.dtype == torch.bfloat16 else logits) / temperature
    if support is not None:
        kept = torch.zeros(*support.shape[:2], scaled.shape[2] + 1, dtype=torch.bool)
        kept = kept.scatter(2, torch.where(support < 0, scaled.shape[2], support), True)[:, :, :-1]
        scaled = scaled.masked_fill(~kept, -1e30)
    return scaled.log_softmax(dim=-1)


@dataclass
class Plain:
    """Log-probabilities, entropies and values of the response tokens, (B, T), with something behind the mask too."""

    logprobs: Tensor
    entropy: Tensor
    values: Tensor | None
    whole: Tensor  # (B, T, V)


def evaluated(policy: Policy, case: Case, temperature: float) -> Plain:
    """What `policy.teacher_forced` gives, slowly."""
    logits, hidden = all_logits(policy, case)
    logprobs = distribution(logits, temperature, case.support)
    chosen = logprobs.gather(2, case.response_ids.unsqueeze(2)).squeeze(2)
    entropy = -(logprobs.exp() * logprobs).sum(dim=-1)
    return Plain(chosen, entropy, policy.value_head and policy.value_head(hidden), logprobs)


def criticised(critic: Critic, case: Case) -> Tensor:
    """The values (B, T) of a separate critic."""
    hidden = called(critic.trunk, case)[0]
    return critic.value_head(hidden[:, -case.response_ids.shape[1] - 1 : -1])


def unfiltered(policy: Policy, ref_policy: Policy, case: Case, temperature: float) -> tuple[Tensor, Tensor]:
    """KL divergence (B, T) of the whole distributions, and the reference's probability of the support."""
    ours, theirs = (distribution(all_logits(model, case)[0], temperature, None) for model in (policy, ref_policy))
    kl = (ours.exp() * (ours - theirs)).sum(dim=-1)
    kept = [[[i for i in ids if i >= 0] for ids in row] for row in case.support.tolist()]
    mass = [[theirs[b, t, ids].exp().sum() for t, ids in enumerate(row)] for b, row in enumerate(kept)]
    return kl, torch.stack([torch.stack(row) for row in mass])


def divergence(ours: Plain, theirs: Plain) -> Tensor:
    """KL divergence (B, T) of one from the other, over the support if there is one."""
    chances = ours.whole.exp()
    return torch.where(chances > 0, chances * (ours.whole - theirs.whole), 0.0).sum(dim=-1)


def loss_of(
    policy: Policy,
    critic: Critic | None,
    case: Case,
    old: dict[str, Tensor],
    config: Any,
    reference: Policy | None = None,
) -> Tensor:
    """The loss of a whole minibatch; `old` holds log-probs, values, advantages and targets (B, T) of its rollout."""
    new, mask = evaluated(policy, case, config.temperature), case.response_mask
    values = new.values if critic is None else criticised(critic, case)
    dual = config.dual_clip_coeff if config.dual_clip_ppo else None
    clip, nothing = ppo.Clip(config.clip_param, config.clip_param, dual), torch.zeros_like(old["logprobs"])
    inputs = [new.logprobs, old["logprobs"], nothing, old["advantages"], nothing + 1, mask, mask.sum(), clip]
    loss, _ = ppo.clip_loss(ppo.LossInputs(*inputs))
    loss = loss - config.entropy_coef * ppo.masked_mean(new.entropy, mask)
    if values is not None:
        clip = config.clip_param if config.use_clipped_value_loss else None
        huber = config.huber_delta if config.use_huber_loss else None
        error = ppo.value_loss(values, old["values"], old["targets"], mask, clip, huber)
        loss = loss + config.value_loss_coef * error
    if reference is not None:
        kl = divergence(new, evaluated(reference, case, config.temperature))
        loss = loss + config.kl_coef * ppo.masked_mean(kl, mask)
    return loss
