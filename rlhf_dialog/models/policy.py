"""The language model as PPO uses it: predictions of given tokens, and the next token's logits.

N packed tokens, K of them predict a response token, V vocabulary, S kept tokens of a filter, H hidden width, b rows.
"""

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property, partial
from typing import Any, NamedTuple, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from rlhf_dialog.models.logprobs import at_least_float32, kl_divergence, on_support, predict
from rlhf_dialog.models.lora import select_adapter
from rlhf_dialog.models.packing import ATTENTION, KeyValues, Prompting, run_packed
from rlhf_dialog.models.precision import get_copy, multiply
from rlhf_dialog.models.token_batch import Packed, TokenBatch
from rlhf_dialog.models.trunk import trunk_of

T = TypeVar("T")
# More logits are computed in chunks, and again in the backward pass. The size decides how sums are rounded: it never depends on
# the memory that is free, so that a run can resume on another day.
LOGITS_AT_ONCE = 2**24  # 64 MiB in float32
LOGITS_AT_ONCE_ON_GPU = 2**26  # 256 MiB; for smaller chunks most of the time would go into reading the output embedding


def supported_options(module: nn.Module, **options: Any) -> dict[str, Any]:
    """Those of the options that the module's forward takes by name."""
    parameters = inspect.signature(module.forward).parameters
    return {name: value for name, value in options.items() if name in parameters}


def num_positions(lm: PreTrainedModel) -> int | None:
    """How many tokens of a row the model can see, None where its configuration sets no limit."""
    sizes = lm.config.get_text_config()
    return getattr(sizes, "max_position_embeddings", None) or getattr(sizes, "n_positions", None)


def packs(lm: nn.Module) -> bool:
    """Whether the model computes packed rows; otherwise they are padded."""
    return getattr(getattr(lm, "config", None), "_attn_implementation", None) == ATTENTION


class Predictions(NamedTuple):  # a tuple, in which DistributedDataParallel and DeepSpeed find the tensors
    """What a policy predicts of response tokens, (K,) or (B, T), at least float32; None what was not asked for.

    Position t of `logprobs` is the log-probability of response token t given all before it, with the `entropy` of that
    distribution and its `kl` divergence from a reference's; position t of `values` is the value before that token.
    """

    logprobs: Tensor
    entropy: Tensor | None = None
    values: Tensor | None = None
    kl: Tensor | None = None

    def scatter(self, packed: Packed) -> "Predictions":
        """Predictions (K,) as (B, T), 0 outside of the mask."""
        return Predictions(*(None if x is None else packed.scatter(x) for x in self))  # type: ignore[arg-type]


class Policy(nn.Module):
    """A causal LM, with a value head on its last hidden state when the trunk is shared with the critic.

    `num_ids`: of a vocabulary that is padded, the number of ids that are tokens; the others have probability 0. None: all are.
    """

    num_ids: int | None = None

    def __init__(
        self,
        lm: PreTrainedModel,
        with_value_head: bool = False,
        use_amp: bool = False,
        amp_dtype: torch.dtype = torch.bfloat16,
        adapter: str | None = None,
    ):
        super().__init__()
        self.lm = lm
        self.use_amp = use_amp
        self.amp_dtype = amp_dtype
        self.adapter = adapter  # the LoRA adapter that is trained; it is selected in the model
        self.value_head = new_value_head(lm) if with_value_head else None

    @property
    def in_float32(self) -> Self:
        """The same model without autocast, for log-probabilities that a table prints."""
        view = copy.copy(self)
        view.use_amp = False
        return view

    def autocast(self, like: Tensor) -> torch.autocast:
        """Autocast under `use_amp`, on the device of `like`."""
        return torch.autocast(like.device.type, self.amp_dtype, enabled=self.use_amp)

    def forward(
        self,
        packed: Packed,
        temperature: float,
        with_entropy: bool = True,
        reference: "tuple[Policy, Tensor] | None" = None,
    ) -> Predictions:
        """The predictions (K,) of the targets of `packed`, under the distribution that they were sampled from.

        `reference`: another policy and its features (K, .), from whose distributions the KL divergences are.
        """
        features, values = self.features(packed)
        return self.predict(features, packed, temperature, with_entropy, reference)._replace(values=values)

    def predict(
        self,
        features: Tensor,
        packed: Packed,
        temperature: float,
        with_entropy: bool = False,
        reference: "tuple[Policy, Tensor] | None" = None,
    ) -> Predictions:
        """As `forward`, without values, from the result of `features`."""
        other, ref_features = reference or (None, None)
        head, ref_head = self.head(), None if other is None else other.head()

        def part(features: Tensor, targets: Tensor, support: Tensor | None, ref_features: Tensor | None) -> Any:
            logits = head(features)
            kl = None
            if ref_head is not None and ref_features is not None:
                kl = kl_divergence(logits, ref_head(ref_features), temperature, support)
            return *predict(logits, targets, temperature, support, with_entropy), kl

        compute = self.with_gathered_head(partial(in_chunks, part, self.positions_at_once))
        compute = compute if other is None else other.with_gathered_head(compute)
        logprobs, entropy, kl = compute(features, packed.targets, packed.support, ref_features)
        return Predictions(logprobs, entropy, kl=kl)

    def features(
        self, packed: Packed, cache: KeyValues | None = None, first_row: int = 0, padded: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """The input of `logits` (K, .), and the values (K,); packed rows can store keys and values in a cache.

        `padded`: compute rows with padding and the library's own attention, also where the model packs.
        """
        together = packs(self.lm) and not padded
        with self.autocast(packed.ids), self.body() as (module, of_head):
            features = run_rows(module, packed, together, cache, first_row)
        hidden = of_head[0] if of_head else features
        index = packed.keep if together else packed.kept_place
        features, hidden = (x.flatten(0, 1).index_select(0, index) for x in (features, hidden))
        return features, self.values(hidden)

    @contextmanager
    def body(self) -> Iterator[tuple[nn.Module, list[Tensor]]]:
        """The module to call: the trunk, where the head is plain, else the model; and a list.

        The list gets the input of the model's output embedding, where a value head reads it. A trunk returns that input itself.
        """
        of_head: list[Tensor] = []
        with self.use_adapter():
            if self.has_plain_head:
                yield trunk_of(self.lm), of_head
            elif self.value_head is None:
                yield self.lm, of_head
            else:
                head = self.lm.get_output_embeddings()
                with head.register_forward_pre_hook(lambda _, args: of_head.append(args[0])):
                    yield self.lm, of_head

    def logits(self, features: Tensor) -> Tensor:
        """(K, V) in the precision that the model computes them in; V is `num_ids` of a padded vocabulary."""
        return self.head()(features)

    def head(self) -> Callable[[Tensor], Tensor]:
        """What makes logits of features, for one pass, in which nothing changes the weights: their 16-bit copy is made here."""
        head: Any = self.lm.get_output_embeddings() if self.has_plain_head else None
        gathers = head is not None and is_part(head)
        copy = get_copy(head, self.amp_dtype) if self.use_amp and head is not None and not gathers else None
        forward = head.forward if gathers else head  # see `with_gathered_head`

        def logits(features: Tensor) -> Tensor:
            if copy is not None:
                features = multiply(head, copy, features)
            elif head is not None:
                with self.autocast(features):
                    features = forward(features)
            return features if self.num_ids is None else features[..., : self.num_ids]

        return logits

    def with_gathered_head(self, compute: Callable[..., T]) -> Callable[..., T]:
        """`compute`, which multiplies by a `head()` made before; it runs as the forward of one call of a partitioned head.

        The weights are gathered once for the call, and once more in the backward pass, by hooks in which every process waits for
        the others. The number of products may then differ from process to process.
        """
        head: Any = self.lm.get_output_embeddings() if self.has_plain_head else None
        if head is None or not is_part(head):
            return compute

        def in_one_call(*inputs: Tensor | None) -> T:
            before = vars(head).get("forward")
            head.forward = compute
            try:
                return head(*inputs)  # type: ignore[no-any-return]
            finally:
                del head.forward
                if before is not None:
                    head.forward = before

        return in_one_call

    def values(self, hidden: Tensor) -> Tensor | None:
        """The values (K,) of hidden states (K, H); None without a value head."""
        return None if self.value_head is None else self.value_head(hidden)

    @cached_property
    def has_plain_head(self) -> bool:
        """Whether the logits are just the output embedding applied to the trunk's output; tried once."""
        if not packs(self.lm):
            return False
        ids = torch.arange(3, device=self.lm.device).unsqueeze(0)
        mask = torch.ones_like(ids)
        with torch.no_grad(), self.autocast(ids):
            hidden = trunk_of(self.lm)(input_ids=ids, attention_mask=mask, use_cache=False)[0]
            logits = self.lm(input_ids=ids, attention_mask=mask, use_cache=False).logits
            return torch.equal(self.lm.get_output_embeddings()(hidden), logits)

    def use_adapter(self) -> AbstractContextManager[None]:
        """For a pass over several microbatches: inside this context the model computes with the adapter of this policy."""
        return nullcontext()

    @property
    def positions_at_once(self) -> int:
        size = LOGITS_AT_ONCE if self.lm.device.type == "cpu" else LOGITS_AT_ONCE_ON_GPU
        return max(1, size // self.lm.config.get_text_config().vocab_size)


class DisabledAdapter(Policy):
    """The reference of a policy with LoRA: the same modules with the adapter disabled."""

    def use_adapter(self) -> AbstractContextManager[None]:
        return select_adapter(self.lm, None)


class Critic(nn.Module):
    """The trunk of a causal LM with a value head: the separate critic of `use_share_model: false`.

    With LoRA the trunk is that of the policy, and `adapter` the critic's own adapter on it.
    """

    def __init__(
        self,
        lm: PreTrainedModel,
        use_amp: bool = False,
        amp_dtype: torch.dtype = torch.bfloat16,
        adapter: str | None = None,
    ):
        super().__init__()
        self.trunk, self.use_amp, self.amp_dtype = trunk_of(lm), use_amp, amp_dtype
        self.adapter = adapter
        self.value_head = new_value_head(lm)

    def use_adapter(self) -> AbstractContextManager[None]:
        """As that of a policy."""
        return nullcontext() if self.adapter is None else select_adapter(self.trunk, self.adapter)

    def forward(self, packed: Packed) -> Tensor:
        """Values (K,) before each target of `packed`; at least float32."""
        index = packed.keep if packs(self.trunk) else packed.kept_place
        with torch.autocast(packed.ids.device.type, self.amp_dtype, enabled=self.use_amp), self.use_adapter():
            hidden = run_rows(self.trunk, packed, packs(self.trunk))
        return self.value_head(hidden.flatten(0, 1).index_select(0, index))  # type: ignore[no-any-return]


def teacher_forced(
    policy: Callable[..., Predictions],
    tokens: TokenBatch,
    temperature: float,
    with_entropy: bool = True,
    reference: tuple[Policy, Tensor] | None = None,
) -> Predictions:
    """The predictions (B, T) of given responses, 0 outside of the mask; `policy` is a Policy, or a module that wraps one.

    `reference`: a reference and its features (B, T, .) on the same tokens, for the exact KL divergence from it.
    """
    packed = tokens.pack()
    if reference is not None:
        reference = reference[0], packed.gather(reference[1])
    return policy(packed, temperature, with_entropy, reference).scatter(packed)


def run_rows(
    module: nn.Module, packed: Packed, packs: bool, cache: KeyValues | None = None, first_row: int = 0
) -> Tensor:
    """The first output of a model or trunk for each token: (1, N, .) of packed rows, (B, L, .) of rows padded on the right."""
    if packs:
        return run_packed(module, packed.ids, packed.positions, Prompting(packed, cache, first_row))[0]
    ids, positions, mask = (packed.pad(x) for x in (packed.ids, packed.positions, torch.ones_like(packed.ids)))
    return module(
        input_ids=ids, attention_mask=mask, use_cache=False, **supported_options(module, position_ids=positions)
    )[0]


def in_chunks(compute: Callable[..., Any], size: int, *inputs: Tensor | None) -> Any:
    """Call `compute` on at most `size` rows of the inputs at a time; the backward pass holds only one chunk.

    `compute` returns a tuple of tensors or None, which are joined.
    """
    count = len(inputs[0]) if inputs[0] is not None else 0
    if count <= size:
        return compute(*inputs)
    chunks = [[x if x is None else x[start : start + size] for x in inputs] for start in range(0, count, size)]
    parts = [checkpoint(compute, *chunk, use_reentrant=False, preserve_rng_state=False) for chunk in chunks]
    return tuple(None if column[0] is None else torch.cat(column) for column in zip(*parts, strict=True))


@torch.no_grad()
def compare_unfiltered(
    policy: tuple[Policy, Tensor], reference: tuple[Policy, Tensor], temperature: float, support: Tensor
) -> tuple[Tensor, Tensor]:
    """What a KL on the support (K, S) does not show, two tensors (K,), of two models with their features (K, .).

    The exact KL divergence of the unfiltered policy from the unfiltered reference at each position, and the probability that the
    reference gives to the support.
    """
    head, ref_head = policy[0].head(), reference[0].head()

    def part(features: Tensor, ref_features: Tensor, support: Tensor) -> tuple[Tensor, Tensor]:
        ours = at_least_float32(head(features)).div(temperature).log_softmax(-1)
        theirs = at_least_float32(ref_head(ref_features)).div(temperature).log_softmax(-1)
        return (ours.exp() * (ours - theirs)).sum(dim=-1), on_support(theirs, support).exp().sum(dim=-1)

    return in_chunks(part, policy[0].positions_at_once, policy[1], reference[1], support)


def is_part(module: nn.Module) -> bool:
    """Whether this process holds a part of the module's weights, which ZeRO 3 or FSDP2 gathers when the module is called."""
    return any(hasattr(p, "ds_id") or hasattr(p, "device_mesh") for p in module.parameters())


class ValueHead(nn.Linear):
    """Values (...,) of hidden states (..., H), never in a lower precision than float32, whatever that of its weights.

    The weights are read only here, where ZeRO has gathered them.
    """

    def forward(self, input: Tensor) -> Tensor:
        with torch.autocast(input.device.type, enabled=False):
            input = at_least_float32(input)
            return nn.functional.linear(input, self.weight.to(input.dtype), self.bias.to(input.dtype)).squeeze(-1)


def new_value_head(lm: PreTrainedModel) -> nn.Linear:
    """A linear layer from the last hidden state to one number; its weights start at zero, so the first values are 0."""
    head = ValueHead(lm.get_output_embeddings().in_features, 1)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head
