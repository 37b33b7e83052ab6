"""What a model must show when it is loaded: that packed rows, or rows padded on the left, have the predictions of each row alone.

The model predicts the tokens of some texts by the library's own attention, each row alone; then in two other shapes, which a
healthy model changes by rounding only: the rows together, padded on the right, and each row with its last quarter cut off. A
model that packed rows change more is computed with padding; one that padding on the left changes more is refused. No limit is
above MOST, so that a fault in a yardstick cannot hide all others. Differences are in nats.

R rows, K predictions: of each token of each row but its first.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlhf_dialog.errors import UserError
from rlhf_dialog.models import network
from rlhf_dialog.models.generation import PackedDecoder, PaddedDecoder
from rlhf_dialog.models.logprobs import predict
from rlhf_dialog.models.masks import position_ids_of
from rlhf_dialog.models.packing import ATTENTION, can_pack
from rlhf_dialog.models.policy import Policy, num_positions, packs, supported_options
from rlhf_dialog.models.precision import HALF, without_tf32
from rlhf_dialog.models.token_batch import TokenBatch
from rlhf_dialog.models.trunk import trunk_of

logger = logging.getLogger(__name__)
STOP = 20  # times the noise, at most
LEAST = 1e-6  # nats: kernels that round equally in both shapes show less, or nothing at all
MOST = 1e-2  # nats, of a limit
ROWS, LONGEST = 8, 96  # of a trial; tokens of the longest row
STEPS = 2  # tokens that come one by one
LAYERS = 8  # that are tried of a large model: models repeat their kinds of layers within as many
TEXT = (
    "Good morning ! I would like to book a table for six people on Saturday evening , if you still have one by the window . "
    "We are celebrating my sister's birthday , so a quiet corner would be lovely . Do you also serve "
    "anything without nuts ? Two of us can't eat them , and last year somebody had to go to the hospital . "
    "The train to the coast leaves at 9:45 from platform 3 , but on Sundays there's only one every two hours . If you buy your "
    "ticket at the machine it's cheaper : 12.50 instead of 15 . Children under six travel free of charge , dogs pay half . "
    "I've been thinking about what you said yesterday . You were right , I should have called her before the meeting , not after "
    "it . What do you think I ought to do now ? Perhaps I'll write a letter ; she always liked letters ."
)


class SingleRowPredictions:
    """What a model predicts of some texts, each row alone, and how other shapes change that, in nats.

    `ids`: of each row, (L,), on the host; `logprobs`: of each row, (L - 1,); `together`: the largest difference when the rows are
    computed together, padded on the right; `shorter`: when the last quarter of each row is cut off; `limit`: what passes for
    rounding, by both.
    """

    @torch.no_grad()
    def __init__(self, lm: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None):
        """In tokens of the `tokenizer`; without one, the bytes of the text are the ids."""
        self.policy, self.ids = Policy(lm), probe_ids(tokenizer, network.num_embeddings(lm), num_positions(lm))
        self.logprobs = [logprobs(self.policy, [row]) for row in self.ids]
        self.together = self.difference(logprobs(self.policy, self.ids))
        parts = [logprobs(self.policy, [row[: max(2, 3 * len(row) // 4)]]) for row in self.ids]
        kept = [row[: len(part)] for row, part in zip(self.logprobs, parts, strict=True)]
        self.shorter = largest(torch.cat(parts), torch.cat(kept))
        self.limit = limit_of(self.together, self.shorter)

    def difference(self, logprobs: Tensor) -> float:
        """The largest difference to predictions (K,) of all tokens."""
        return largest(logprobs, torch.cat(self.logprobs))


def limit_of(*shapes: float) -> float:
    """The largest difference in nats that passes for rounding, by what other shapes changed."""
    return min(STOP * max(*shapes, LEAST), MOST)


def probe_ids(tokenizer: PreTrainedTokenizerBase | None, num_tokens: int, positions: int | None) -> list[Tensor]:
    """Rows of text, of different lengths and of at most `positions` tokens."""
    ids = tokenizer(TEXT, add_special_tokens=False, verbose=False)["input_ids"] if tokenizer else list(TEXT.encode())
    longest = min(LONGEST, positions or LONGEST)
    lengths = [max(3, longest - 2 * number) for number in range(ROWS)]
    text = (torch.tensor(ids) % num_tokens).repeat(1 + sum(lengths) // len(ids))
    return list(text[: sum(lengths)].split(lengths))


def logprobs(policy: Policy, rows: list[Tensor], padded: bool = True) -> Tensor:
    """The log-probabilities (K,) of the tokens of some rows; `padded`: together, padded on the right, else packed."""
    ids, mask = in_batch(rows, policy.lm.device)
    packed = TokenBatch(ids[:, :1], mask[:, :1], ids[:, 1:], mask[:, 1:]).pack()
    features, _ = policy.features(packed, padded=padded)
    return policy.predict(features, packed, temperature=1.0).logprobs


def left_padded_logprobs(policy: Policy, rows: list[Tensor]) -> Tensor:
    """As `logprobs`, of rows that are padded on the left."""
    ids, mask = in_batch(rows, policy.lm.device, side="left")
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


@contextmanager
def trial_form(lm: PreTrainedModel) -> Iterator[None]:
    """Inside the block, a model on a GPU, or with 16-bit weights, computes in strict float32, to save memory in LAYERS layers."""
    if lm.device.type != "cuda" and not any(p.dtype in HALF for p in lm.parameters()):
        yield
        return
    number = getattr(lm.config.get_text_config(), "num_hidden_layers", None)
    places = [(part, name, layers) for part in trunk_of(lm).modules() for name, layers in part.named_children()]
    cut = [one for one in places if isinstance(one[2], nn.ModuleList) and len(one[2]) == number][:1]
    for part, name, layers in cut:
        setattr(part, name, layers[:LAYERS])  # type: ignore[index]
    held = [(p, p.data) for p in lm.parameters() if p.dtype in HALF]
    try:
        for p, x in held:
            p.data = x.float()
        with without_tf32():
            yield
    finally:
        for p, x in held:
            p.data = x
        for part, name, layers in cut:
            setattr(part, name, layers)


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
    if not difference <= alone.limit:
        lm.set_attn_implementation(usual)
        effect = "so padding is computed too: a run takes up to twice as long"
        text = "%s does not support packed rows (predictions differ by %.2g nats, rounding explains %.2g), %s"
        logger.info(text, type(lm).__name__, difference, alone.limit, effect)
    return packs(lm)


@torch.no_grad()
def packing_error(lm: PreTrainedModel, alone: SingleRowPredictions) -> float:
    """The largest difference between the predictions of packed rows and of each row alone, of all at once and one by one."""
    policy = Policy(lm)
    all_at_once = alone.difference(logprobs(policy, alone.ids, padded=False))
    decoder = PackedDecoder(policy, beginnings(alone), num_new=STEPS, prompts_at_once=ROWS)
    return max(all_at_once, decoding_error(decoder, policy, alone))


def beginnings(alone: SingleRowPredictions) -> TokenBatch:
    """The first tokens of each row, of different numbers, as prompts."""
    rows = [row[: min(len(row) - STEPS, 12 + 2 * number)] for number, row in enumerate(alone.ids)]
    return TokenBatch.from_prompts([row.tolist() for row in rows], 0, alone.policy.lm.device)


def decoding_error(decoder: PackedDecoder | PaddedDecoder, policy: Policy, alone: SingleRowPredictions) -> float:
    """The largest difference of the STEPS tokens that follow each beginning, when they come one by one."""
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
    """Raises UserError when padding on the left, or the tokens that follow, change the predictions of the model.

    So does padding on the right for a network of the user's.
    """
    is_own = network.spec_of(lm) is not None

    def check(difference: float, limit: float, when: str) -> None:
        if not difference <= limit:
            raise UserError(
                f"{key}: '{path}' ({type(network.own_network(lm)).__name__}) changes its predictions by {difference:.2g} nats "
                f"when {when} (rounding explains {limit:.2g}); wanted a causal model that uses the attention_mask and "
                f"position_ids that it gets, and draws nothing in eval mode{f'; {network.CONTRACT}' if is_own else ''}"
            )

    padded = alone.difference(left_padded_logprobs(alone.policy, alone.ids))
    check(alone.shorter, limit_of(alone.together, padded), "its last tokens are cut off")
    if is_own:
        check(alone.together, limit_of(alone.shorter, padded), "a row is padded on the right")
    check(padded, alone.limit, "a prompt is padded on the left")
    decoder = PaddedDecoder(alone.policy, beginnings(alone))
    check(decoding_error(decoder, alone.policy, alone), alone.limit, "tokens come one by one")
