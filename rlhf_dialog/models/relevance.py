"""Models of relevance: how well a reply fits the turns before it (its context). Scores are nats under InfoNCE, up to a constant.

C contexts of T turns, B replies, K candidates (contexts for a reply), N texts of L tokens, H width, M members.

The folder of a model has config.json, model.safetensors, the tokenizer, and bank.json with contexts as text.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, Field
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoTokenizer

from rlhf_dialog.data.learned_half import LearnedHalf, learned_half
from rlhf_dialog.errors import UserError
from rlhf_dialog.found_files import check_files
from rlhf_dialog.json_files import json_or, load_json
from rlhf_dialog.models.load_report import check_same_names
from rlhf_dialog.models.pretrained import load_pretrained, num_ids, readable

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")  # the first ids of the tokenizer
PAD, UNK, CLS, SEP = range(4)
CHUNK = 512  # texts that go through a network together
ROWS = 64  # replies that are compared with their candidates together
BUCKETS = 1024  # of the hashes by which copies are found
COPY_UNIT = 10.0  # so that the weights of copies learn as fast as the rest


class RelevanceSizes(BaseModel, extra="forbid"):
    """What a relevance model is built from."""

    architecture: Literal["bag", "convolution"] = "convolution"
    members: int = Field(3, ge=1, le=64)
    context_size: int = Field(5, ge=1, le=1000)
    copied_turns: int = Field(2, ge=1, le=1000)  # of the context, the newest ones; models of before this key have two
    max_turn_tokens: int = Field(48, ge=4, le=4096)
    vocab_size: int = Field(8000, ge=len(SPECIAL), le=10**7)
    hidden_size: int = Field(128, ge=2, le=16384)
    dropout: float = Field(0.3, ge=0, lt=1)
    word_dropout: float = Field(0.2, ge=0, lt=1)


class TurnTable:
    """Texts by number, so that each distinct text is tokenised and encoded once. Number 0 is the empty text: no turn."""

    def __init__(self, tokenizer: Any, sizes: RelevanceSizes):
        self.tokenizer, self.sizes = tokenizer, sizes
        self.numbers = {"": 0}
        self._ids: list[list[int]] = [[]]

    def number(self, text: str) -> int:
        """The number of a text."""
        return self.numbers.setdefault(text.strip(), len(self.numbers))

    def replies(self, texts: Sequence[str]) -> Tensor:
        """Numbers (B,)."""
        return torch.tensor([self.number(text) for text in texts], dtype=torch.long)

    def contexts(self, contexts: Sequence[Sequence[str]]) -> Tensor:
        """Numbers (C, T) of the newest turns, the last turn first; 0 where a context has fewer."""
        size = self.sizes.context_size
        rows = [[self.number(turn) for turn in list(turns)[: -size - 1 : -1]] for turns in contexts]
        padded = [row + [0] * (size - len(row)) for row in rows]
        return torch.tensor(padded, dtype=torch.long).reshape(len(rows), size)

    @property
    def ids(self) -> list[list[int]]:
        """The token ids of every text, without special tokens; a longer text loses its end."""
        if len(self._ids) < len(self.numbers):
            missing = list(self.numbers)[len(self._ids) :]
            found = self.tokenizer(missing, add_special_tokens=False, verbose=False)["input_ids"]
            self._ids += [ids[: self.sizes.max_turn_tokens] for ids in found]
        return self._ids


@dataclass
class Encoded:
    """Texts of a table, each distinct one once (N), and where they are used."""

    vectors: Tensor  # (N, H)
    sketches: Tensor  # (N, 2, BUCKETS) bool: which words, and which pairs of neighbouring words, occur; by their hash
    places: Tensor  # (B,) or (C, T): the row of each reply, or of each turn of each context


class DualEncoder(nn.Module):
    """Context and reply become unit vectors; the score is their product times a learned scale, and a price on copying.

    A turn is the mean of its word vectors (`bag`), or of these plus a convolution over three words (`convolution`). A
    context is a linear map of its turns side by side, the last one first. What such vectors cannot say is that a reply repeats
    a turn, which has the same words as a relevant reply: so the shares of the reply's words and word pairs that occur in each
    of the last `copied_turns` turns, and their squares, count with learned weights.
    """

    def __init__(self, sizes: RelevanceSizes):
        super().__init__()
        width = sizes.hidden_size
        self.word_dropout = sizes.word_dropout
        self.embedding = nn.Embedding(sizes.vocab_size, width, padding_idx=PAD)
        nn.init.normal_(self.embedding.weight, std=0.1)
        convolves = sizes.architecture == "convolution"
        self.convolution = nn.Linear(3 * width, width) if convolves else None
        self.dropout = nn.Dropout(sizes.dropout)
        self.of_context = nn.Linear(sizes.context_size * width, width)
        self.of_reply = nn.Linear(width, width)
        self.log_scale = nn.Parameter(torch.tensor(math.log(10.0)))
        self.copying = nn.Parameter(torch.zeros(min(sizes.copied_turns, sizes.context_size), 4))

    def encode(self, table: TurnTable, numbers: Tensor) -> Encoded:
        """The texts of `numbers` (of any shape) in `table`; those of similar length go through the network together."""
        distinct, places = numbers.unique(return_inverse=True)
        known = table.ids
        ids = [known[i] for i in distinct.tolist()]
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        chunks = [order[start : start + CHUNK] for start in range(0, len(order), CHUNK)]
        kept = [_pad([ids[i] for i in chunk]).to(self.log_scale.device) for chunk in chunks]
        if self.training:
            kept = [x.masked_fill(torch.rand(x.shape, device=x.device) < self.word_dropout, PAD) for x in kept]
        back = torch.tensor(order).argsort().to(self.log_scale.device)
        vectors, sketches = torch.cat([self._turns(x) for x in kept]), torch.cat([_sketches(x) for x in kept])
        return Encoded(vectors.index_select(0, back), sketches[back], places.to(back.device))

    def _turns(self, ids: Tensor) -> Tensor:
        mask = (ids != PAD).unsqueeze(-1)
        x = self.embedding(ids).masked_fill(~mask, 0.0)
        if self.convolution is not None:
            around = functional.pad(x, (0, 0, 1, 1))
            x = x + functional.relu(self.convolution(torch.cat([around[:, :-2], x, around[:, 2:]], dim=-1)))
        return x.masked_fill(~mask, 0.0).sum(dim=1) / mask.sum(dim=1).clamp(min=1)

    def context_vectors(self, texts: Encoded) -> Tensor:
        """Unit vectors (C, H)."""
        turns = texts.vectors.index_select(0, texts.places.flatten()).view(len(texts.places), -1)
        return functional.normalize(self.of_context(self.dropout(turns)), dim=-1)

    def reply_vectors(self, texts: Encoded) -> Tensor:
        """Vectors (B, H) of the length of the scale."""
        scale = self.log_scale.clamp(max=math.log(50.0)).exp()
        vectors = functional.normalize(self.of_reply(self.dropout(texts.vectors)), dim=-1)
        return scale * vectors.index_select(0, texts.places)

    def copy_prices(self, replies: Encoded, contexts: Encoded, last: Tensor) -> tuple[Tensor, Tensor]:
        """What each reply (B) pays for repeating each distinct turn (N) as one of the last turns, (B, N, turns).

        `last` (..., turns): the rows of the last turns in `contexts`; also returned as numbers of those N.
        """
        turns, places = last.unique(return_inverse=True)
        words = replies.sketches[replies.places].float()
        shares = torch.einsum("bsd,nsd->bns", words, contexts.sketches[turns].float())
        shares = shares / words.sum(dim=-1).clamp(min=1).unsqueeze(1)
        return COPY_UNIT * torch.cat([shares, shares.square()], dim=-1) @ self.copying.T, places

    def all_scores(self, contexts: Encoded, replies: Encoded) -> Tensor:
        """Scores (B, C) of each reply with each context."""
        prices, places = self.copy_prices(replies, contexts, contexts.places[:, : len(self.copying)])
        paid = sum(prices[..., turn].index_select(1, places[:, turn]) for turn in range(len(self.copying)))
        return self.reply_vectors(replies) @ self.context_vectors(contexts).T + paid

    def scores(self, table: TurnTable, contexts: Tensor, replies: Tensor, candidates: Tensor) -> Tensor:
        """Scores (B, K) of each reply with the contexts that `candidates` (B, K) names by their row in `contexts`.

        `contexts` (C, T) and `replies` (B,) are numbers of `table`.
        """
        before, said = self.encode(table, contexts), self.encode(table, replies)
        vectors, chunks = self.context_vectors(before), []
        for rows in torch.arange(len(replies)).split(ROWS):
            some, chosen = replace(said, places=said.places[rows]), candidates[rows].to(vectors.device)
            products = torch.einsum("bh,bkh->bk", self.reply_vectors(some), vectors[chosen])
            prices, places = self.copy_prices(some, before, before.places[chosen, : len(self.copying)])
            own, last = (torch.arange(len(x), device=chosen.device) for x in (chosen, self.copying))
            chunks.append(products + prices[own[:, None, None], places, last].sum(dim=-1))
        return torch.cat(chunks)


class RelevanceModel(nn.Module):
    """Several networks that learned the same with other seeds, their tokenizer, and the bank of training contexts.

    `bank`: the turns of each context, oldest first. `learned_half`: the half of the dialogues that it learned from, if that is
    known.
    """

    learned_half: LearnedHalf | None = None

    def __init__(self, sizes: RelevanceSizes, tokenizer: Any, bank: list[list[str]]):
        super().__init__()
        self.sizes, self.tokenizer, self.bank = sizes, tokenizer, bank
        self.members = nn.ModuleList(DualEncoder(sizes) for _ in range(sizes.members))

    def table(self) -> TurnTable:
        """An empty table of texts."""
        return TurnTable(self.tokenizer, self.sizes)

    @torch.no_grad()
    def scores(self, contexts: Sequence[Sequence[str]], replies: Sequence[str], candidates: Tensor) -> Tensor:
        """Scores (M, B, K) on the CPU, in float32: of each reply with the contexts in its row of `candidates` (B, K)."""
        table = self.table()
        before, said = table.contexts(contexts), table.replies(replies)
        if not len(replies):
            return torch.zeros(len(self.members), *candidates.shape)
        networks: Any = self.members
        return torch.stack([one.scores(table, before, said, candidates).float().cpu() for one in networks])


def _sketches(ids: Tensor) -> Tensor:
    """(N, 2, BUCKETS): which hashes of words, and of pairs of neighbouring words, occur in ids (N, L)."""
    following = torch.cat([ids[:, 1:], torch.zeros_like(ids[:, :1])], dim=1)
    sketches = torch.zeros(len(ids), 2, BUCKETS, dtype=torch.bool, device=ids.device)
    for kind, (hashes, mask) in enumerate(
        ((ids, ids != PAD), (ids * 7919 + following * 104729, (ids != PAD) & (following != PAD)))
    ):
        rows, columns = mask.nonzero(as_tuple=True)
        sketches[rows, kind, hashes[rows, columns] % BUCKETS] = True
    return sketches


def _pad(ids: list[list[int]]) -> Tensor:
    """(N, L), at least one column."""
    longest = max(map(len, ids), default=0) or 1
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in ids], dtype=torch.long).reshape(-1, longest)


MARK, FORMAT = "rlhf_dialog_relevance", 1
Bank = Annotated[list[Annotated[list[str], Field(min_length=1)]], Field(min_length=1)]  # the turns of each context


def save_relevance(model: RelevanceModel, folder: Path) -> None:
    """Write the folder."""
    document = {MARK: FORMAT, **model.sizes.model_dump()}
    (folder / "config.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    (folder / "bank.json").write_text(json.dumps(model.bank, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    model.tokenizer.save_pretrained(folder)
    save_model(model, str(folder / "model.safetensors"))


def is_relevance_folder(path: str) -> bool:
    """Whether the config.json of a folder says that it holds a relevance model."""
    check_files(path)
    found = json_or(Path(path).expanduser() / "config.json", None)
    return isinstance(found, dict) and MARK in found


def load_relevance(path: str, key: str) -> RelevanceModel:
    """The frozen model of a folder, in eval mode; only safetensors and JSON are read.

    `key` is what named the path. Raises UserError when there is no such model, or its files do not fit together.
    """
    folder = Path(path).expanduser()
    if not is_relevance_folder(path):
        raise UserError(
            f"{key}: '{path}' is not the folder of a relevance model (a config.json with {MARK}); give what "
            "reward_models/train_relevance_model.py wrote"
        )
    with readable(path, key, "a relevance model"):
        document = load_json(folder / "config.json")
        if (version := document.pop(MARK)) != FORMAT:
            raise UserError(f"{key}: {folder}/config.json has format {version!r:.40}, this program reads {FORMAT}")
        sizes = RelevanceSizes.model_validate(document)
        bank = load_json(folder / "bank.json", Bank)
        tokenizer = load_pretrained(AutoTokenizer, path, key, trust_remote_code=False)
        special = tokenizer.convert_tokens_to_ids(list(SPECIAL))
        if special != list(range(len(SPECIAL))) or num_ids(tokenizer) > sizes.vocab_size:
            raise UserError(
                f"{key}: the tokenizer in '{path}' belongs to another model; give the whole folder of one training"
            )
        model = RelevanceModel(sizes, tokenizer, bank)
        check_same_names(model, *load_model(model, str(folder / "model.safetensors"), strict=False), path, key)
    if broken := [name for name, weights in model.named_parameters() if not weights.isfinite().all()]:
        raise UserError(f"{key}: '{path}' has NaN or infinite weights ({broken[0]}); train the model again")
    model.learned_half = learned_half(folder)
    return model.eval().requires_grad_(False)
