"""Train a relevance model: does a reply fit the turns before it? InfoNCE in both directions (van den Oord et al. 2018).

B pairs, R candidate replies, C candidate contexts.
"""

import logging
import zipfile
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedTokenizerBase, get_cosine_schedule_with_warmup, set_seed

from rlhf_dialog.atomic_files import atomic_file
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.prompts import PromptRules
from rlhf_dialog.data.sources.record import BAD_SHARE
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation import intervals
from rlhf_dialog.evaluation.measure import dialogue_numbers, recalls
from rlhf_dialog.evaluation.replies import pick_prompts
from rlhf_dialog.json_files import damage_as_user_error
from rlhf_dialog.models.cpu_linear import use_onednn
from rlhf_dialog.models.device import choose_device
from rlhf_dialog.models.precision import precision_of
from rlhf_dialog.models.relevance import DualEncoder, RelevanceModel, RelevanceSizes, load_relevance, save_relevance
from rlhf_dialog.terminal import TimeLeft
from rlhf_dialog.training.supervised.checkpoints import (
    BEGIN_AGAIN,
    OTHER_TRAINING,
    SaveTimer,
    checkpoint_folder,
    identity_of,
)
from rlhf_dialog.training.supervised.new_tokenizers import new_pair_tokenizer
from rlhf_dialog.training.supervised.relevance.pairs import Batch, Pairs, batch_of, number_pairs
from rlhf_dialog.training.supervised.settings import RelevanceConfig
from rlhf_dialog.training.supervised.stage import StageOfHalves, num_steps

logger = logging.getLogger(__name__)
NUM_MEASURED = 2000  # prompts, drawn by the seed
MAX_LENGTH = 128  # tokens, in the tokenizer's file
FILE = "checkpoint-members.pt"


@dataclass
class RelevanceProgress:
    """How far a member is: the steps that it has done, and the rows that are left of its epoch; `optimizer` has its state."""

    member: int = 0
    step: int = 0
    order: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    optimizer: dict[str, Any] | None = None
    schedule: dict[str, Any] | None = None
    random: Tensor | None = None


class MembersCheckpoint:
    """Writes the checkpoint when it is time, and reads that of a killed training of the same `identity`.

    It is this program's own file, and is read with `weights_only=True`.
    """

    def __init__(self, model: nn.Module, folder: Path, identity: str, due: SaveTimer):
        self.model, self.path, self.identity, self.due = model, folder / FILE, identity, due

    def save(self, progress: RelevanceProgress) -> None:
        """Write it whole, in place of the one before."""
        with atomic_file(self.path) as beside:
            torch.save(
                {"identity": self.identity, "model": self.model.state_dict(), "progress": vars(progress)}, beside
            )
        self.due.done()

    def damage(self) -> AbstractContextManager[None]:
        """Inside, what a damaged checkpoint raises becomes a UserError."""
        return damage_as_user_error(f"{self.path}: is damaged: ", f"; {BEGIN_AGAIN}", faults=(Exception,))

    def restore(self) -> RelevanceProgress:
        """Where the training goes on, with the model as it was there; the beginning where there is no such checkpoint."""
        if not self.path.is_file():
            return RelevanceProgress()
        with self.damage():
            with zipfile.ZipFile(self.path) as archive:
                if changed := archive.testzip():  # torch does not compare the sums
                    raise ValueError(f"{changed} is not what was written")
            saved = torch.load(self.path, map_location="cpu", weights_only=True)
            if saved["identity"] != self.identity:
                logger.warning(OTHER_TRAINING, self.path)
                return RelevanceProgress()
            self.model.load_state_dict(saved["model"])
            progress = RelevanceProgress(**saved["progress"])
        logger.info("goes on in member %d after step %d, from %s", progress.member + 1, progress.step, self.path)
        return progress


def markdown(split: str, result: dict[str, Any]) -> str:
    """The measures of one split as a Markdown table."""
    rows = {"R@1 of 100": result["r1"], "R@10 of 100": result["r10"]}
    lines = [f"| {name} | {x['mean']:.3f} | {x['low']:.3f} to {x['high']:.3f} |" for name, x in rows.items()]
    head = f"## {split}: {result['num_pairs']} prompts of {result['num_dialogues']} dialogues"
    return "\n".join([head, "", "| | mean | 95 % interval of this one run |", "|---|---|---|", *lines, ""])


class RelevanceTraining(StageOfHalves):
    """Prompts with their true replies become a relevance model."""

    page_of_split = staticmethod(markdown)

    def pairs(self, split: str) -> list[Dialogue]:
        config = self.config
        prompts = PromptRules.from_keys(config).load(config.data_path, split)
        pairs = [replace(prompt, response=prompt.reference) for prompt in prompts if prompt.reference]
        if without := len(prompts) - len(pairs):
            text = (
                f"{without} of {len(prompts)} prompts in the {split} split of '{config.data_path}' have no true reply"
            )
            if without > BAD_SHARE * len(prompts):
                raise UserError(
                    f"data_path: {text}, which the model learns from, and only up to {BAD_SHARE:.0%} may be left out; use data "
                    "in which every prompt has one"
                )
            self.report(f"{text} and are left out")
        if len(pairs) < 2:
            raise UserError(
                f"data_path: the {split} split of '{config.data_path}' has one pair of turns; use more data"
            )
        self.report(f"{split}: {len(pairs)} pairs of a prompt and its true reply")
        return pairs

    def start(self) -> tuple[RelevanceModel, PreTrainedTokenizerBase]:
        """Random members, a tokenizer of the training turns, and the bank, drawn by the seed."""
        config, pairs = self.config, self.training
        texts = [pair.response for pair in pairs] + [turn for pair in pairs for turn in pair.prompt_turns[-1:]]
        tokenizer = new_pair_tokenizer(texts, config.vocab_size, MAX_LENGTH)
        given = RelevanceSizes.model_fields.keys() - {"vocab_size", "copied_turns"}
        sizes = {name: getattr(config, name) for name in given}
        bank = [pair.prompt_turns for pair in pick_prompts(pairs, config.bank_size, config.seed)]
        try:
            complete = RelevanceSizes(vocab_size=len(tokenizer), copied_turns=config.context_size, **sizes)
            return RelevanceModel(complete, tokenizer, bank), tokenizer
        except ValueError as error:
            raise UserError(str(error)) from error

    def learn(self) -> None:
        config = self.config
        pairs = number_pairs(self.training, self.model.table(), config.seed, config.salad_weight > 0)
        identity = identity_of(config, [pairs.contexts.tolist(), pairs.replies.tolist()])
        self.model.to(choose_device(config.device))
        timer = SaveTimer(config.checkpoint_minutes)
        checkpoint = MembersCheckpoint(self.model, checkpoint_folder(config), identity, timer)
        begun, left = checkpoint.restore(), TimeLeft()
        for number, member in enumerate(self.model.members):
            if number >= begun.member:
                set_seed(config.seed + number)
                progress = begun if number == begun.member else RelevanceProgress(number)
                fit(config, member, pairs, progress, checkpoint, left)
            member.eval()

    def save(self) -> None:
        save_relevance(self.model.cpu().eval(), self.folder)

    def measure_split(self, pairs: list[Dialogue]) -> dict[str, Any]:
        """R@1 and R@10 of the true replies among 100 prompts, with 95 % intervals over dialogues."""
        config, model = self.config, load_relevance(str(self.folder), "output").to(choose_device(self.config.device))
        pairs = pick_prompts(pairs, NUM_MEASURED, config.seed)
        numbers = dialogue_numbers(pairs)
        measures: dict[str, Any] = {"num_pairs": len(pairs), "num_dialogues": len(set(numbers.tolist()))}
        for name, values in recalls(model, pairs, numbers.tolist(), config.seed).items():
            measures[name] = intervals.interval(intervals.mean_statistic(values, numbers))
        return measures

    def measure(self) -> dict[str, Any]:
        return super().measure() | {"num_bank": len(self.model.bank)}


def fit(
    config: RelevanceConfig,
    member: DualEncoder,
    pairs: Pairs,
    progress: RelevanceProgress,
    checkpoint: MembersCheckpoint,
    left: TimeLeft,
) -> None:
    """Train one member in place, from where it is; it ends in eval mode. `left` is of all members."""
    name, steps = f"member {progress.member + 1} of {config.members}", num_steps(config, len(pairs.replies))
    optimizer = torch.optim.AdamW(member.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
    schedule = get_cosine_schedule_with_warmup(optimizer, round(config.warmup_ratio * steps), steps)
    if progress.optimizer and progress.schedule and progress.random is not None:
        with checkpoint.damage():
            optimizer.load_state_dict(progress.optimizer)
            schedule.load_state_dict(progress.schedule)
            torch.set_rng_state(progress.random)
    device = next(member.parameters()).device
    use_onednn(member)
    member.train()
    left.text((progress.member + progress.step / steps) / config.members)
    for step in range(progress.step + 1, steps + 1):
        rows, progress.order = next_rows(progress.order, len(pairs.replies), config.batch_size)
        batch = batch_of(pairs, rows, config.copy_weight, config.salad_weight)
        with torch.autocast(device.type, torch.bfloat16, enabled=precision_of(config, device) == "bf16"):
            loss = dual_loss(member, pairs, batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(member.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % max(1, steps // 5) == 0:
            rest = left.text((progress.member + step / steps) / config.members)
            more = f", {rest}" if rest else ""
            logger.info("%s, step %d of %d: loss %.3f%s", name, step, steps, loss.item(), more)
        if checkpoint.due.now():
            progress.step, progress.random = step, torch.get_rng_state()
            progress.optimizer, progress.schedule = optimizer.state_dict(), schedule.state_dict()
            checkpoint.save(progress)
    member.eval()


def next_rows(order: Tensor, count: int, size: int) -> tuple[Tensor, Tensor]:
    """The rows of a batch, and what is then left of the epoch: `order` is what was left before.

    Epochs are shuffled; what is too little for a batch at the end of one is left out.
    """
    size = min(size, count)
    if len(order) < size:
        order = torch.randperm(count)
    return order[:size], order[size:]


def dual_loss(member: DualEncoder, pairs: Pairs, batch: Batch) -> Tensor:
    """Half the cross-entropy of the true reply among all replies, half that of the true context among all contexts."""
    count, device = len(batch.reply_weights), member.log_scale.device
    contexts, replies = member.encode(pairs.table, batch.contexts), member.encode(pairs.table, batch.replies)
    own_contexts = replace(contexts, places=contexts.places[:count])
    own_replies = replace(replies, places=replies.places[:count])
    true = torch.arange(count, device=device)
    of_replies = member.all_scores(own_contexts, replies).T + batch.reply_weights.to(device)
    of_contexts = member.all_scores(contexts, own_replies) + batch.context_weights.to(device)
    return (functional.cross_entropy(of_replies, true) + functional.cross_entropy(of_contexts, true)) / 2
