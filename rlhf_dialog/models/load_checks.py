"""What a model must show when it is loaded: that packed rows, or rows padded on the left, have the predictions of each row alone.

The model predicts the tokens of some texts by the library's own attention, each row alone; then in two other shapes, which a
healthy model changes by rounding only: the rows together, padded on the right, and each row with its last quarter cut off. What
is tried is compared with the shape that it does not judge. No limit is above MOST, so that a fault in a yardstick cannot hide all
others. Differences are in nats.

R rows, K predictions: of each token of each row but its first.
"""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlhf_dialog.errors import UserError
from rlhf_dialog.models import network
from rlhf_dialog.models.generation import PackedDecoder, PaddedDecoder
from rlhf_dialog.models.logprobs import predict
from rlhf_dialog.models.masks import position_ids_of
from rlhf_dialog.models.network import num_embeddings
from rlhf_dialog.models.packing import ATTENTION, can_pack
from rlhf_dialog.models.policy import Policy, num_positions, packs, supported_options
from rlhf_dialog.models.precision import HALF, without_tf32
from rlhf_dialog.models.token_batch import TokenBatch

STOP = 20  # times the noise, at most
LEAST = 1e-6  # nats: kernels that round equally in both shapes show less, or nothing at all
MOST = 1e-2  # nats, of a limit
NUM_TOKENS, NUM_ROWS, LONGEST = 504, 8, 96  # at least as many predictions and rows; tokens of the longest row
TEXTS = (
    "Good morning ! I would like to book a table for six people on Saturday evening , if you still have one by the window . "
    "We are celebrating my sister's birthday , so a quiet corner would be lovely . Do you also serve "
    "anything without nuts ? Two of us can't eat them , and last year somebody had to go to the hospital .",
    "The train to the coast leaves at 9:45 from platform 3 , but on Sundays there's only one every two hours . If you buy your "
    "ticket at the machine it's cheaper : 12.50 instead of 15 . Children under six travel free of charge , dogs pay half . "
    "Don't forget to get off at the second stop , because the last carriage stays behind .",
    "I've been thinking about what you said yesterday . You were right , I should have called her before the meeting , not after "
    "it . What do you think I ought to do now ? Perhaps I'll write a letter ; she always liked letters . And then we could all "
    "go for a walk by the river , like we used to when we were students .",
    "My computer makes a strange noise whenever I start it , as if a small animal lived inside . The repair shop wants $80 just "
    "to open it ! My neighbour says it's only dust in the fan . He has been right about most things so far , except the weather "
    "and the football results , so I'm inclined to believe him this time .",
    "First you heat the oven to 200 degrees . Meanwhile , mix the flour , two eggs , a cup of milk and a pinch of salt until "
    "there are no lumps left . Pour everything into the hot pan and leave it alone for twenty minutes . In any case , do "
    "not open the door before it has risen , or it will collapse and taste like rubber .",
    "Nobody in our office knows how the new telephone system works . Yesterday I tried to call the manager and ended up talking "
    "to a dentist in another town , who was very friendly and gave me an appointment . I took it , since I had a toothache "
    "anyway . Sometimes things simply find their own way .",
    "When we moved here ten years ago , there was one bakery , a church and a bus that came when it pleased . Now we have three "
    "supermarkets and nowhere to park . My father refuses to shop in any of them and walks four miles for his bread . He's 83 "
    "and says it is what keeps him young .",
    "Did you see the game last night ? I couldn't believe it when they lost in the last minute ! My brother threw his shoe at "
    "the television , and now we need a new one . A television , I mean ; the shoe is fine . He says he'll pay for it as soon as "
    "he finds a job , which I've heard before .",
)


class SingleRowPredictions:
    """What a model predicts of some texts, each row alone, and how other shapes change that, in nats.

    `ids`: of each row, (L,), on the host; `logprobs`: of each row, (L - 1,). The two shapes are computed when they are asked for.
    """

    @torch.no_grad()
    def __init__(self, lm: PreTrainedModel, ids: list[Tensor]):
        self.policy, self.ids = Policy(lm), ids
        self.logprobs = [logprobs(self.policy, [row]) for row in ids]

    @cached_property
    @torch.no_grad()
    def together(self) -> float:
        """The largest difference when the rows are computed together, padded on the right."""
        return self.difference(logprobs(self.policy, self.ids))

    @cached_property
    @torch.no_grad()
    def shorter(self) -> float:
        """The largest difference when the last quarter of each row is cut off."""
        parts = [logprobs(self.policy, [row[: max(2, 3 * len(row) // 4)]]) for row in self.ids]
        kept = [row[: len(part)] for row, part in zip(self.logprobs, parts, strict=True)]
        return largest(torch.cat(parts), torch.cat(kept))

    def explains(self, difference: float) -> bool:
        """Whether rounding explains a difference; the second shape is computed only where the first does not."""
        return difference <= limit_of(self.shorter) or difference <= self.limit

    @property
    def limit(self) -> float:
        """The largest difference in nats that passes for rounding, by both shapes."""
        return limit_of(self.together, self.shorter)

    def difference(self, logprobs: Tensor) -> float:
        """The largest difference to predictions (K,) of all tokens."""
        return largest(logprobs, torch.cat(self.logprobs))


def limit_of(*shapes: float) -> float:
    """The largest difference in nats that passes for rounding, by what other shapes changed."""
    return min(STOP * max(*shapes, LEAST), MOST)


def logprobs(policy: Policy, rows: list[Tensor], padded: bool = True) -> Tensor:
    """The log-probabilities (K,) of the tokens of some rows; `padded`: together, padded on the right, else packed."""
    ids, mask = in_batch(rows, policy.lm.device)
    packed = TokenBatch(ids[:, :1], mask[:, :1], ids[:, 1:], mask[:, 1:]).pack()
    features, _ = policy.features(packed, padded=padded)
    return policy.predict(features, packed, temperature=1.0).logprobs


def left_padded_logprobs(policy: Policy, rows: list[Tensor], pad_id: int = 0) -> Tensor:
    """As `logprobs`, of rows that are padded on the left."""
    ids, mask = in_batch(rows, policy.lm.device, side="left")
    ids = ids.masked_fill(~mask, pad_id)
    options = supported_options(policy.lm, position_ids=position_ids_of(mask))
    logits = policy.lm(input_ids=ids, attention_mask=mask.long(), use_cache=False, **options).logits
    predictions = logits[:, :-1][mask[:, :-1]]
    return predict(predictions, ids[:, 1:][mask[:, :-1]], 1.0, None, with_entropy=False)[0]


def in_batch(rows: Sequence[Tensor], device: torch.device, side: str = "right") -> tuple[Tensor, Tensor]:
    """Ids and mask (R, L) on the device."""
    masks = [torch.ones_like(row, dtype=torch.bool) for row in rows]
    ids, mask = (pad_sequence(x, batch_first=True, padding_side=side) for x in (list(rows), masks))
    return ids.to(device), mask.to(device)


def largest(first: Tensor, second: Tensor) -> float:
    """The largest difference; inf where one is not a number, or the two do not have the same shape."""
    difference = (first - second).abs().max().item() if first.shape == second.shape else math.inf
    return math.inf if math.isnan(difference) else difference


def probe_ids(tokenizer: PreTrainedTokenizerBase | None, num_tokens: int, positions: int | None) -> list[Tensor]:
    """Rows of different lengths, of at most `positions` tokens, with NUM_TOKENS predictions at least.

    Without a tokenizer the ids are drawn, always the same, among the `num_tokens` of the vocabulary.
    """
    if tokenizer:
        texts = [tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] for text in TEXTS]
    else:
        streams = [torch.Generator().manual_seed(number) for number in range(NUM_ROWS)]
        texts = [torch.randint(num_tokens, (LONGEST,), generator=stream).tolist() for stream in streams]
    longest = min(LONGEST, positions or LONGEST)
    rows: list[Tensor] = []
    while len(rows) < NUM_ROWS or sum(len(row) - 1 for row in rows) < NUM_TOKENS:
        number = len(rows)
        length = max(3, longest - 2 * (number % NUM_ROWS) if longest > 4 * NUM_ROWS else longest - number % 3)
        row = torch.tensor(texts[number % len(texts)]) % num_tokens
        row = row.repeat(1 + (length + number) // len(row))
        start = (length * (number // NUM_ROWS)) % max(1, len(row) - length)
        rows.append(row[start : start + length])
    return rows


logger = logging.getLogger(__name__)
LARGE = 2 * 2**30  # bytes of weights
STEPS = 2  # tokens that come one by one
DROPOUT_NAMES = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
DROPOUTS: set[Any] = {torch.dropout, *(getattr(functional, name) for name in DROPOUT_NAMES)}
REMEDIES = {
    "dropout": "Call eval() on the model, and let what draws random numbers act only where self.training is true",
    "dtype": "Let precision in the YAML set the type of both, and take casts and autocast out of the model",
    "positions": "Let the model use the position_ids that it gets, in every call",
    "attention mask": "Let the model use the attention_mask that it gets, and hide no token by its id",
    "packing": "Let the model mix no tokens but by its attention, or set packing: false",
}


def predicted_on_texts(lm: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None) -> SingleRowPredictions:
    """What the model predicts of texts of its tokenizer; without one, of ids that are drawn."""
    return SingleRowPredictions(lm, probe_ids(tokenizer, num_embeddings(lm), num_positions(lm)))


@contextmanager
def trial_form(lm: PreTrainedModel) -> Iterator[None]:
    """Inside the block, a model on a GPU computes in strict float32, and a large one has its first layers alone.

    These are the layers up to the first one of the last kind, at least two. On a CPU nothing changes.
    """
    if lm.device.type != "cuda":
        yield
        return
    place = layer_list(lm) if sum(p.nbytes for p in lm.parameters()) > LARGE else None
    layers = getattr(*place) if place else None
    if place:
        setattr(*place, layers[: num_layers_to_try(lm, layers)])  # type: ignore[index, arg-type]
    held = [(p, p.data) for p in lm.parameters() if p.dtype in HALF]
    try:
        for p, x in held:
            p.data = x.float()
        with without_tf32():
            yield
    finally:
        for p, x in held:
            p.data = x
        if place:
            setattr(*place, layers)


def layer_list(lm: PreTrainedModel) -> tuple[nn.Module, str] | None:
    """The module that has the list of the trunk's layers, and the list's name in it; None where there is none."""
    count = getattr(lm.config.get_text_config(), "num_hidden_layers", None)
    for module in lm.base_model.modules():
        for name, child in module.named_children():
            if isinstance(child, nn.ModuleList) and len(child) == count:
                return module, name
    return None


def num_layers_to_try(lm: PreTrainedModel, layers: nn.ModuleList) -> int:
    """The number of the first layers among which there is one of each kind: of modules, shapes and attention."""
    types = getattr(lm.config.get_text_config(), "layer_types", None) or [None] * len(layers)
    kinds = []
    for layer, attention in zip(layers, types, strict=True):
        parts = [(name, type(module).__name__) for name, module in layer.named_modules()]
        kinds.append((attention, parts, [p.shape for p in layer.parameters()]))
    return max(2, *(kinds.index(kind) + 1 for kind in kinds))


def use_packing(lm: PreTrainedModel, alone: SingleRowPredictions) -> bool:
    """Let the model compute packed rows if its predictions are then those of each row alone; returns whether it does."""
    if not can_pack(lm) or lm.get_output_embeddings() is None:
        return False
    usual = lm.config._attn_implementation
    lm.set_attn_implementation(ATTENTION)
    try:
        difference = packing_error(lm, alone)
    except (TypeError, ValueError, RuntimeError, NotImplementedError, AttributeError, KeyError, IndexError) as error:
        logger.debug("%s cannot compute packed rows: %r", type(lm).__name__, error)
        difference = math.inf
    lm.set_attn_implementation(usual)  # by which the yardstick is computed
    if alone.explains(difference):
        lm.set_attn_implementation(ATTENTION)
    else:
        effect = "so padding is computed too: a run takes up to twice as long"
        text = "%s does not support packed rows (predictions differ by %.2g nats, rounding explains %.2g), %s"
        logger.info(text, type(lm).__name__, difference, alone.limit, effect)
    return packs(lm)


@torch.no_grad()
def packing_error(lm: PreTrainedModel, alone: SingleRowPredictions) -> float:
    """The largest difference in nats between the predictions of packed rows and of each row alone, of all at once and one by
    one."""
    policy = Policy(lm)
    all_at_once = alone.difference(logprobs(policy, alone.ids, padded=False))
    prompts = beginnings(alone)
    decoder = PackedDecoder(policy, prompts, num_new=STEPS, prompts_at_once=len(prompts))
    return max(all_at_once, decoding_error(decoder, policy, alone))


def beginnings(alone: SingleRowPredictions) -> TokenBatch:
    """The first tokens of each row, of different numbers, as prompts."""
    rows = [row[: min(len(row) - STEPS, 12 + 2 * (number % NUM_ROWS))] for number, row in enumerate(alone.ids)]
    return TokenBatch.from_prompts([row.tolist() for row in rows], 0, alone.policy.lm.device)


def decoding_error(decoder: PackedDecoder | PaddedDecoder, policy: Policy, alone: SingleRowPredictions) -> float:
    """The largest difference in nats of the STEPS tokens that follow each beginning, when they come one by one."""
    starts = beginnings(alone).prompt_mask.sum(dim=1).tolist()
    newest = torch.stack([row[at : at + STEPS] for row, at in zip(alone.ids, starts, strict=True)]).to(policy.lm.device)
    expected = torch.stack([row[at - 1 : at - 1 + STEPS] for row, at in zip(alone.logprobs, starts, strict=True)])
    predicted = []
    for step in range(STEPS):
        logits = policy.logits(decoder.features)
        predicted.append(predict(logits, newest[:, step], 1.0, None, with_entropy=False)[0])
        decoder.step(newest[:, step])
    return largest(torch.stack(predicted, dim=1), expected)


@torch.no_grad()
def check_left_padding(lm: PreTrainedModel, alone: SingleRowPredictions, path: str, key: str) -> None:
    """Raises UserError when padding on the left, or the tokens that follow, change the predictions of the model."""
    name = type(network.own_network(lm)).__name__
    is_own = network.spec_of(lm) is not None
    difference = alone.difference(left_padded_logprobs(alone.policy, alone.ids))
    limit = limit_of(alone.together, difference)
    if not alone.shorter <= limit:
        by = f"by {alone.shorter:.2g} nats (rounding explains {limit:.2g})"
        cause = try_fault(lm, alone, lambda fresh: fresh.shorter <= limit_of(fresh.together))
        raise UserError(
            f"{key}: '{path}' ({name}) changes its predictions {by} when its last tokens are cut off. {cause}"
            if cause
            else f"{key}: '{path}' ({name}) looks at the tokens that follow, which change its predictions {by}, so it is not a "
            "causal LM"
        )
    if is_own:
        network.check_right_padding(lm, alone.together, limit_of(alone.shorter, difference), key)
    limit = alone.limit
    if not difference <= limit:
        by = f"by {difference:.2g} nats when a prompt is padded on the left (rounding explains {limit:.2g})"
        cause = try_fault(lm, alone, lambda x: x.difference(left_padded_logprobs(x.policy, x.ids)) <= x.limit)
        raise UserError(
            f"{key}: '{path}' ({name}) changes its predictions {by}, so batches of prompts would be wrong. "
            f"{cause or padding_fault(alone, is_own)}"
        )
    one_by_one = decoding_error(padded_decoder(alone), alone.policy, alone)
    if not one_by_one <= limit:
        by = f"by {one_by_one:.2g} nats when tokens come one by one (rounding explains {limit:.2g})"
        conclusion = f"do not hold what it has read; {network.CONTRACT}" if is_own else "cannot be used"
        cause = try_fault(lm, alone, lambda x: decoding_error(padded_decoder(x), x.policy, x) <= x.limit)
        raise UserError(
            f"{key}: the predictions of {name} differ {by}"
            f"{f'. {found}' if (found := cause or _shift(lm, alone)) else f'; its past_key_values {conclusion}'}"
        )


def padded_decoder(alone: SingleRowPredictions) -> PaddedDecoder:
    """The decoder of a model that does not pack, after the beginning of each row."""
    return PaddedDecoder(alone.policy, beginnings(alone))


def _shift(lm: PreTrainedModel, alone: SingleRowPredictions) -> str:
    """`Cause. Remedy.` where other positions explain what tokens that come one by one change; else empty."""
    last = num_positions(lm)
    for by in (-1, 1):
        decoder = padded_decoder(alone)
        with shift_positions(lm, by, last and last - 1):
            if decoding_error(decoder, alone.policy, alone) <= alone.limit:
                size = "large" if by < 0 else "small"
                return f"Positions are one too {size} where tokens come one by one. {REMEDIES['positions']}"
    return ""


@torch.no_grad()
def try_fault(lm: PreTrainedModel, alone: SingleRowPredictions, passes: Callable[[SingleRowPredictions], bool]) -> str:
    """`Cause. Remedy` of a failed try, which `passes` makes again for each; empty if none explains it."""

    def helps(switch: WithoutDropout | WithoutCasts) -> bool:
        with switch:
            return passes(SingleRowPredictions(lm, alone.ids))

    again = SingleRowPredictions(lm, alone.ids)
    if not alone.difference(torch.cat(again.logprobs)) <= limit_of(0.0):
        why = "dropout that acts in eval mode" if helps(WithoutDropout()) else "not by torch's dropout"
        return f"The model draws random numbers ({why}). {REMEDIES['dropout']}"
    if helps(WithoutCasts()):
        return f"The model computes in 16 bits in part, and passes in 32 bits. {REMEDIES['dtype']}"
    special = special_ids(lm)
    other = next(int(i) for i in torch.cat(alone.ids) if int(i) not in special)
    for token in sorted(special):
        if passes(SingleRowPredictions(lm, [row.masked_fill(row == token, other) for row in alone.ids])):
            return f"The model hides the pad or end token (id {token}) where it is part of a text. {REMEDIES['attention mask']}"
    return ""


def special_ids(lm: PreTrainedModel) -> set[int]:
    """The pad and end tokens that the model or its generation configuration names."""
    ids: set[int] = set()
    for holder in (lm.config, getattr(lm, "generation_config", None)):
        for name in ("pad_token_id", "eos_token_id"):
            named = getattr(holder, name, None)
            ids.update(i for i in (named if isinstance(named, list) else [named]) if i is not None)
    return ids


def padding_fault(alone: SingleRowPredictions, is_own: bool) -> str:
    """`Cause. Remedy` of a model whose predictions padding on the left changes; `is_own`: a network of the user's."""
    first, second = (left_padded_logprobs(alone.policy, alone.ids, pad_id) for pad_id in (0, 1))
    if not largest(first, second) <= limit_of(0.0):
        remedy = "Skip the tokens whose attention_mask is 0" if is_own else REMEDIES["attention mask"]
        return f"The model sees the tokens that pad a prompt. {remedy}"
    remedy = "Let forward take position_ids" if is_own else "Use a model that takes position_ids"
    return f"The model does not see the padding, but counts its positions. {remedy}"


@contextmanager
def shift_positions(lm: nn.Module, by: int, last: int | None) -> Iterator[None]:
    """Inside the block, the model gets position_ids that are `by` larger, from 0 to `last`, where it is called with them."""

    def shift(_: nn.Module, args: Any, options: dict[str, Any]) -> Any:
        positions = options.get("position_ids")
        if positions is None:
            return None
        return args, {**options, "position_ids": (positions + by).clamp(0, last)}

    called: Any = network.own_network(lm) if isinstance(lm, network.NetworkLM) else lm.base_model
    with called.register_forward_pre_hook(shift, with_kwargs=True):
        yield


class WithoutDropout(TorchFunctionMode):
    """Inside the block, torch's dropout changes nothing, in training mode too."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in DROPOUTS:
            return args[0] if args else kwargs["input"]
        if func is functional.scaled_dot_product_attention:
            args, kwargs = args[:4], {**kwargs, "dropout_p": 0.0}
        return func(*args, **kwargs)


class WithoutCasts(TorchFunctionMode):
    """Inside the block, nothing is computed under autocast, and no tensor in 32 bits is cast to 16."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if args and isinstance(args[0], Tensor) and _narrows(func, args, kwargs):
            return args[0]
        device = next((x.device.type for x in args if isinstance(x, Tensor)), "cpu")
        with torch.autocast(device, enabled=False):
            return func(*args, **kwargs)


def _narrows(func: Any, args: Any, kwargs: Any) -> bool:
    if args[0].dtype in HALF or not args[0].is_floating_point():
        return False
    asked = {x for x in (*args[1:], *kwargs.values()) if isinstance(x, torch.dtype)}
    is_cast = func in (Tensor.to, Tensor.type) and not asked.isdisjoint(HALF)
    return is_cast or func in (Tensor.half, Tensor.bfloat16)
