"""Train a relevance model: does a reply fit the turns before it? InfoNCE in both directions (van den Oord et al. 2018).

B pairs, R candidate replies, C candidate contexts.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional
from transformers import get_cosine_schedule_with_warmup, set_seed

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.halves import Half
from rlhf_dialog.data.learned_half import KEY as HALF_KEY
from rlhf_dialog.data.prompts import load_prompts
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.replies import generate_replies, pick_prompts
from rlhf_dialog.models.chat_agent import ChatAgent
from rlhf_dialog.models.cpu_linear import use_onednn
from rlhf_dialog.models.loading import trained_parameters
from rlhf_dialog.models.relevance import CrossEncoder, DualEncoder, RelevanceModel, RelevanceSizes
from rlhf_dialog.models.relevance_folder import save_relevance
from rlhf_dialog.training.supervised.data_halves import of_half
from rlhf_dialog.training.supervised.hugging_face_trainer import SupervisedKeys, num_steps, prepare
from rlhf_dialog.training.supervised.new_tokenizers import new_pair_tokenizer
from rlhf_dialog.training.supervised.relevance.pairs import KINDS, Batch, Pairs, batch_of, numbered
from rlhf_dialog.training.supervised.relevance.report import measure

logger = logging.getLogger(__name__)


class RelevanceConfig(SupervisedKeys):
    """Relevance model"""

    data_path: str = Field(description="data file, folder, zip or Hub name; docs/DATA.md shows every format")
    output: str = Field(
        description="folder to write: model, tokenizer, bank of prompts (text of your data), report.json; refused when it "
        "holds something"
    )
    drop_overlap: bool = Field(
        False, description="leave out training dialogues that nearly repeat one of validation or test"
    )
    half: Half = Field(
        "all",
        description="training dialogues to learn from: all, or the reward's or the judge's half, which share no dialogue and "
        "nothing that repeats one: whole clusters of dialogues with the same utterances go to one half",
    )
    architecture: Literal["bag", "convolution", "cross_encoder"] = Field(
        "bag",
        description="bag, convolution: context and reply are encoded apart (a minute; minutes); cross_encoder: a BERT reads "
        "both together (many minutes, and as a reward each reply with each prompt of the bank)",
    )
    members: int = Field(
        3, ge=1, le=64, description="networks with different seeds; the reward is the mean of their margins"
    )
    context_size: int = Field(5, ge=1, le=1000, description="turns before the reply that the model reads")
    min_context_size: int = Field(
        1, ge=1, description="shortest prompts to learn from and to put into the bank; best that of the PPO run"
    )
    bank_size: int = Field(512, ge=1, description="training prompts that the reward compares the own prompt with")
    copy_weight: float = Field(
        30.0,
        ge=1,
        description="how often a repeated turn (the last one, the one before it, and one of the older ones) counts as a wrong "
        "reply",
    )
    model_replies: int = Field(0, ge=0, description="replies of sft_model that serve as wrong replies to other prompts")
    sft_model: str | None = Field(None, description="folder of the SFT model that writes model_replies; null: none")
    max_turn_tokens: int = Field(48, ge=4, description="tokens of a turn; the end of a longer one is cut off")
    vocab_size: int = Field(8000, ge=200, description="tokens of the new lower-case tokenizer")
    hidden_size: int = Field(128, ge=8, description="width; for a cross_encoder a multiple of num_heads")
    dropout: float = Field(0.3, ge=0, lt=1, description="share of the activations that are dropped during training")
    word_dropout: float = Field(0.2, ge=0, lt=1, description="share of the words that are dropped during training")
    num_layers: int = Field(2, ge=1, description="cross_encoder: layers of the BERT")
    num_heads: int = Field(2, ge=1, description="cross_encoder: attention heads")
    max_length: int = Field(128, ge=16, description="cross_encoder: tokens; of a longer context the start is cut off")
    num_negatives: int = Field(2, ge=1, description="cross_encoder: other replies, and other contexts, for each pair")
    batch_size: int = Field(128, ge=2, description="pairs per optimizer step; each is a wrong one for the others")
    learning_rate: float = Field(5e-3, gt=0, description="peak; 5e-4 suits a cross_encoder")
    epochs: float = Field(3.0, gt=0, description="passes over the training data; may be a fraction")
    evaluate_test: bool = Field(False, description="report the test split too; do this once, at the end")


def train(config: RelevanceConfig, folder: Path, report: Callable[[str], None]) -> dict[str, Any]:
    """Train, and write the model into `folder`; returns the measures of each held-out split, and counts.

    `report` is called with one line for each thing that is read or made. Raises UserError when data or sft_model do not fit.
    """
    prepare(config)
    pairs, half = of_half(read_pairs(config, "train", report), config.half, config.data_path, report)
    held_out = {split: read_pairs(config, split, report) for split in splits(config)}
    model = new_model(config, pairs)
    report(f"{trained_parameters([model]) / 1e6:.2f} million parameters in {config.members} members")
    learned = numbered(pairs, model.table(), model_answers(config, pairs, report), config.seed)
    device = "cuda" if config.device != "cpu" and torch.cuda.is_available() else "cpu"
    for number, member in enumerate(model.to(device).members):
        set_seed(config.seed + number)
        fit(config, member, learned, f"member {number + 1} of {config.members}")
    save_relevance(model.cpu().eval(), folder)
    results: dict[str, Any] = {
        split: measure(str(folder), some, device, config.seed) for split, some in held_out.items()
    }
    counts = {"num_train_pairs": len(pairs), "num_parameters": trained_parameters([model]), "num_bank": len(model.bank)}
    return results | counts | {HALF_KEY: asdict(half) if half else None}


def splits(config: RelevanceConfig) -> list[str]:
    """The splits that the report measures."""
    return ["validation", "test"] if config.evaluate_test else ["validation"]


def read_pairs(config: RelevanceConfig, split: str, report: Callable[[str], None]) -> list[Dialogue]:
    """The prompts of a split, each with its true reply as `response`. Raises UserError when one has no reply."""
    found = load_prompts(config.data_path, split, config.context_size, config.min_context_size, config.drop_overlap)
    pairs = [replace(prompt, response=prompt.reference or "") for prompt in found]
    if without := sum(not pair.response for pair in pairs):
        raise UserError(
            f"data_path: {without} of {len(pairs)} prompts in the {split} split of '{config.data_path}' have no true reply, "
            "which the model learns from; use data in which every prompt has one"
        )
    if len(pairs) < 2:
        raise UserError(f"data_path: the {split} split of '{config.data_path}' has one pair of turns; use more data")
    report(f"{split}: {len(pairs)} pairs of a prompt and its true reply")
    return pairs


def new_model(config: RelevanceConfig, pairs: list[Dialogue]) -> RelevanceModel:
    """Random members, a tokenizer of the training turns, and the bank, drawn by the seed."""
    texts = [pair.response for pair in pairs] + [turn for pair in pairs for turn in pair.prompt_turns[-1:]]
    tokenizer = new_pair_tokenizer(texts, config.vocab_size, config.max_length)
    sizes = {
        name: getattr(config, name) for name in RelevanceSizes.model_fields.keys() - {"vocab_size", "copied_turns"}
    }
    bank = [pair.prompt_turns for pair in pick_prompts(pairs, config.bank_size, config.seed)]
    try:
        return RelevanceModel(
            RelevanceSizes(vocab_size=len(tokenizer), copied_turns=config.context_size, **sizes), tokenizer, bank
        )
    except ValueError as error:
        raise UserError(str(error)) from error


def model_answers(config: RelevanceConfig, pairs: list[Dialogue], report: Callable[[str], None]) -> list[Dialogue]:
    """What sft_model answers to training prompts. Raises UserError when it is missing or cannot be loaded."""
    if not config.model_replies:
        return []
    if config.sft_model is None:
        raise UserError(
            "sft_model: model_replies asks for replies of the SFT model; name its folder, or set model_replies: 0"
        )
    agent = ChatAgent.load(config.sft_model)
    prompts = pick_prompts(pairs, config.model_replies, config.seed)
    answers = generate_replies(agent, prompts, agent.sampling, config.seed, title="replies of the SFT model").dialogues
    report(f"{len(answers)} replies of '{config.sft_model}'")
    return answers


def fit(config: RelevanceConfig, member: nn.Module, pairs: Pairs, name: str) -> None:
    """Train one member in place; it ends in eval mode."""
    steps = num_steps(config, len(pairs.replies))
    optimizer = torch.optim.AdamW(member.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
    schedule = get_cosine_schedule_with_warmup(optimizer, round(config.warmup_ratio * steps), steps)
    device = next(member.parameters()).device
    use_onednn(member)
    member.train()
    for step, rows in enumerate(row_batches(len(pairs.replies), config.batch_size, steps), start=1):
        batch = batch_of(pairs, rows, config.batch_size // 2, config.copy_weight)
        with _autocast(device, config.use_amp):
            loss = loss_of(config, member, pairs, batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(member.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % max(1, steps // 5) == 0:
            logger.info("%s, step %d of %d: loss %.3f", name, step, steps, loss.item())
    member.eval()


def row_batches(count: int, size: int, steps: int) -> Iterator[Tensor]:
    """Rows of `steps` batches from shuffled epochs; what is too little for a batch at the end of an epoch is left out."""
    size = min(size, count)
    order = torch.empty(0, dtype=torch.long)
    for _ in range(steps):
        if len(order) < size:
            order = torch.randperm(count)
        rows, order = order[:size], order[size:]
        yield rows


def loss_of(config: RelevanceConfig, member: nn.Module, pairs: Pairs, batch: Batch) -> Tensor:
    """The loss of a batch, in nats."""
    if isinstance(member, DualEncoder):
        return dual_loss(member, pairs, batch)
    assert isinstance(member, CrossEncoder)
    return cross_loss(member, pairs, batch, config.num_negatives)


def dual_loss(member: DualEncoder, pairs: Pairs, batch: Batch) -> Tensor:
    """Half the cross-entropy of the true reply among all replies, half that of the true context among all contexts."""
    count, device = len(batch.reply_weights), member.log_scale.device
    contexts, replies = member.encoded(pairs.table, batch.contexts), member.encoded(pairs.table, batch.replies)
    own_contexts = replace(contexts, places=contexts.places[:count])
    own_replies = replace(replies, places=replies.places[:count])
    true = torch.arange(count, device=device)
    of_replies = member.all_scores(own_contexts, replies).T + batch.reply_weights.to(device)
    of_contexts = member.all_scores(contexts, own_replies) + batch.context_weights.to(device)
    return (functional.cross_entropy(of_replies, true) + functional.cross_entropy(of_contexts, true)) / 2


def cross_loss(member: CrossEncoder, pairs: Pairs, batch: Batch, num_negatives: int) -> Tensor:
    """The cross-entropy of the true pair among pairs with another reply and pairs with another context.

    One softmax over both kinds, so that neither a context nor a reply can score high with everything.
    """
    count, num_replies = batch.reply_weights.shape
    positions = torch.arange(count).unsqueeze(1)
    others = (positions + torch.arange(1, min(num_negatives, count - 1) + 1)) % count
    hard = positions + count * torch.arange(1, KINDS)
    of_model = (
        torch.randint(KINDS * count, num_replies, (count, 1)) if num_replies > KINDS * count else positions[:, :0]
    )
    replies, contexts = torch.cat([positions, others, hard, of_model], dim=1), torch.cat([others, hard], dim=1)
    weights = torch.cat([batch.reply_weights.gather(1, replies), batch.context_weights.gather(1, contexts)], dim=1)
    width = weights.shape[1]
    asked_contexts = torch.cat([positions.expand_as(replies), contexts], dim=1).flatten()
    asked_replies = torch.cat([replies, positions.expand_as(contexts)], dim=1).flatten()
    wanted = weights.flatten().isfinite()
    scores = torch.full((count * width,), -torch.inf, device=next(member.parameters()).device)
    found = member.of_pairs(pairs.table, batch.contexts[asked_contexts[wanted]], batch.replies[asked_replies[wanted]])
    scores[wanted.to(scores.device)] = found
    logits = scores.reshape(count, width) + weights.to(scores.device)
    return functional.cross_entropy(logits, torch.zeros(count, dtype=torch.long, device=scores.device))


def _autocast(device: torch.device, enabled: bool) -> AbstractContextManager[Any]:
    return torch.autocast(device.type, torch.bfloat16, enabled=enabled)
