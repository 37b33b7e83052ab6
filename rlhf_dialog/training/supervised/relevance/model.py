"""Train a relevance model: does a reply fit the turns before it? InfoNCE in both directions (van den Oord et al. 2018).

B pairs, R candidate replies, C candidate contexts.
"""

import logging
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedTokenizerBase, get_cosine_schedule_with_warmup, set_seed

from rlhf_dialog.atomic_files import atomic_file
from rlhf_dialog.data.prompts import NO_REFERENCE, PromptRules, Prompts
from rlhf_dialog.data.row_counts import BAD_SHARE
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
from rlhf_dialog.training.supervised.checkpoints import BEGIN_AGAIN, OTHER_TRAINING, checkpoint_folder, identity_of
from rlhf_dialog.training.supervised.new_tokenizers import new_pair_tokenizer
from rlhf_dialog.training.supervised.relevance.pairs import Batch, Pairs, batch_of, number_pairs
from rlhf_dialog.training.supervised.settings import RelevanceConfig
from rlhf_dialog.training.supervised.stage import StageOfHalves, answered, num_steps

logger = logging.getLogger(__name__)
NUM_MEASURED = 2000  # prompts, drawn by the seed
MAX_LENGTH = 128  # tokens, in the tokenizer's file
FILE = "checkpoint-members.pt"


def markdown(split: str, result: dict[str, Any]) -> str:
    """The measures of one split as a Markdown table."""
    rows = {"R@1 of 100": result["r1"], "R@10 of 100": result["r10"]}
    lines = [f"| {name} | {x['mean']:.3f} | {x['low']:.3f} to {x['high']:.3f} |" for name, x in rows.items()]
    head = f"## {split}: {result['num_pairs']} prompts of {result['num_dialogues']} dialogues"
    return "\n".join([head, "", "| | mean | 95 % interval of this one run |", "|---|---|---|", *lines, ""])


class RelevanceTraining(StageOfHalves):
    """Prompts with their true replies become a relevance model."""

    page_of_split = staticmethod(markdown)

    def pairs(self, split: str) -> Prompts:
        config = self.config
        prompts = PromptRules.from_keys(config).load(config.data_path, split)
        pairs = prompts.select(~prompts.flagged(NO_REFERENCE))
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
        texts = [pair.reference or "" for pair in pairs] + [turn for pair in pairs for turn in pair.prompt_turns[-1:]]
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
        """One member after the other, with a checkpoint behind each."""
        config = self.config
        pairs = number_pairs([*map(answered, self.training)], self.model.table(), config.seed, config.salad_weight > 0)
        identity = identity_of(config, [pairs.contexts.tolist(), pairs.replies.tolist()])
        self.model.to(choose_device(config.device))
        path, left = checkpoint_folder(config) / FILE, TimeLeft()
        num_trained = restore_members(self.model, path, identity)
        for number, member in enumerate(self.model.members):
            if number >= num_trained:
                set_seed(config.seed + number)
                fit(config, number, member, pairs, left)
                saved = {"identity": identity, "model": self.model.state_dict(), "num_trained": number + 1}
                with atomic_file(path) as beside:
                    torch.save(saved, beside)
            member.eval()

    def save(self) -> None:
        save_relevance(self.model.cpu().eval(), self.folder)

    def measure_split(self, pairs: Prompts) -> dict[str, Any]:
        """R@1 and R@10 of the true replies among 100 prompts, with 95 % intervals over dialogues."""
        config, model = self.config, load_relevance(str(self.folder), "output").to(choose_device(self.config.device))
        shown = [*map(answered, pick_prompts(pairs, NUM_MEASURED, config.seed))]
        numbers = dialogue_numbers(shown)
        measures: dict[str, Any] = {"num_pairs": len(shown), "num_dialogues": len(set(numbers.tolist()))}
        for name, values in recalls(model, shown, numbers.tolist(), config.seed).items():
            measures[name] = intervals.interval(intervals.mean_statistic(values, numbers))
        return measures

    def measure(self) -> dict[str, Any]:
        return super().measure() | {"num_bank": len(self.model.bank)}


def restore_members(model: nn.Module, path: Path, identity: str) -> int:
    """The number of members that a killed training of this identity has trained; `model` gets their weights.

    Raises UserError for a damaged checkpoint, which is this program's own file, and is read with `weights_only=True`.
    """
    if not path.is_file():
        return 0
    with damage_as_user_error(f"{path}: is damaged: ", f"; {BEGIN_AGAIN}", faults=(Exception,)):
        with zipfile.ZipFile(path) as archive:
            if changed := archive.testzip():  # torch does not compare the sums
                raise ValueError(f"{changed} is not what was written")
        saved = torch.load(path, map_location="cpu", weights_only=True)
        if saved["identity"] != identity:
            logger.warning(OTHER_TRAINING, path)
            return 0
        model.load_state_dict(saved["model"])
        num_trained = int(saved["num_trained"])
    logger.info("goes on after member %d, from %s", num_trained, path)
    return num_trained


def fit(config: RelevanceConfig, number: int, member: DualEncoder, pairs: Pairs, left: TimeLeft) -> None:
    """Train the member of this number in place. `left` is of all members."""
    steps = num_steps(config, len(pairs.replies))
    optimizer = torch.optim.AdamW(member.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
    schedule = get_cosine_schedule_with_warmup(optimizer, round(config.warmup_ratio * steps), steps)
    device, order = member.log_scale.device, torch.empty(0, dtype=torch.long)
    use_onednn(member)
    member.train()
    left.text(number / config.members)
    for step in range(1, steps + 1):
        rows, order = next_rows(order, len(pairs.replies), config.batch_size)
        batch = batch_of(pairs, rows, config.copy_weight, config.salad_weight)
        with torch.autocast(device.type, torch.bfloat16, enabled=precision_of(config, device) == "bf16"):
            loss = dual_loss(member, pairs, batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(member.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % max(1, steps // 5) == 0:
            rest = left.text((number + step / steps) / config.members)
            name, more = f"member {number + 1} of {config.members}", f", {rest}" if rest else ""
            logger.info("%s, step %d of %d: loss %.3f%s", name, step, steps, loss.item(), more)


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
