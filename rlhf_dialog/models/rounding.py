"""What rounding does to the predictions of a model: the yardstick of the tries when it is loaded (`loading`, `network`).

The model predicts the tokens of some texts by the library's own attention, each row alone; then in two other shapes, which a
healthy model changes by rounding only: the rows together, padded on the right, and each row with its last quarter cut off. A try
is compared with the shape that it does not judge. No limit is above MOST, so that a fault in a yardstick cannot hide all others.

R rows, K predictions: of each token of each row but its first.
"""

import math
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlhf_dialog.models.logprobs import predict
from rlhf_dialog.models.masks import position_ids_of
from rlhf_dialog.models.policy import Policy, accepted
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


class Alone:
    """What a model predicts of some texts, each row alone, and how other shapes change that, in nats.

    `ids`: of each row, (L,); `logprobs`: of each row, (L - 1,). The two shapes are computed when they are asked for.
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
    ids, mask = in_batch(rows)
    packed = TokenBatch(ids[:, :1], mask[:, :1], ids[:, 1:], mask[:, 1:]).pack()
    features, _ = policy.features(packed, padded=padded)
    return policy.predict(features, packed, temperature=1.0).logprobs


def left_padded_logprobs(policy: Policy, rows: list[Tensor], pad_id: int = 0) -> Tensor:
    """As `logprobs`, of rows that are padded on the left."""
    ids, mask = in_batch(rows, side="left")
    ids = ids.masked_fill(~mask, pad_id)
    options = accepted(policy.lm, position_ids=position_ids_of(mask))
    logits = policy.lm(input_ids=ids, attention_mask=mask.long(), use_cache=False, **options).logits
    predictions = logits[:, :-1][mask[:, :-1]]
    return predict(predictions, ids[:, 1:][mask[:, :-1]], 1.0, None, with_entropy=False)[0]


def in_batch(rows: Sequence[Tensor], side: str = "right") -> tuple[Tensor, Tensor]:
    """Ids and mask (R, L)."""
    ids = pad_sequence(list(rows), batch_first=True, padding_side=side)
    return ids, pad_sequence(
        [torch.ones_like(row, dtype=torch.bool) for row in rows], batch_first=True, padding_side=side
    )


def largest(first: Tensor, second: Tensor) -> float:
    """The largest difference; inf where one is not a number, or the two do not have the same shape."""
    difference = (first - second).abs().max().item() if first.shape == second.shape else math.inf
    return math.inf if math.isnan(difference) else difference


def probe_ids(tokenizer: PreTrainedTokenizerBase | None, num_tokens: int, positions: int | None) -> list[Tensor]:
    """Rows of different lengths, of at most `positions` tokens, with NUM_TOKENS predictions at least.

    Without a tokenizer the ids are drawn, always the same, among the `num_tokens` of the vocabulary.
    """
    texts = (
        [_ids(tokenizer, text) for text in TEXTS]
        if tokenizer
        else [_drawn(num_tokens, number) for number in range(NUM_ROWS)]
    )
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


def _ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def _drawn(num_tokens: int, seed: int) -> list[int]:
    return torch.randint(num_tokens, (LONGEST,), generator=torch.Generator().manual_seed(seed)).tolist()
