"""Supervised fine-tuning: teach a causal LM, or a small model from scratch, the replies of the training dialogues."""

import logging
import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer, TrainerCallback, TrainingArguments

from rlhf_dialog.atomic_files import write_json
from rlhf_dialog.data import chat_template as templates
from rlhf_dialog.data.agent_template import agent_template
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.prompt_ids import warn_about_cut
from rlhf_dialog.data.prompts import NO_REFERENCE, PromptRules
from rlhf_dialog.errors import MissingSplit, UserError
from rlhf_dialog.json_files import load_json
from rlhf_dialog.models import lora
from rlhf_dialog.models.chat_agent import settle_separator
from rlhf_dialog.models.loading import load_causal_lm, read_tokenizer, recompute_layers
from rlhf_dialog.models.network import num_embeddings
from rlhf_dialog.models.policy import Policy, num_positions
from rlhf_dialog.models.precision import without_tf32
from rlhf_dialog.models.pretrained import warn_of_remote_code
from rlhf_dialog.models.saved_agent import kept_system_prompt, set_system_prompt
from rlhf_dialog.models.token_batch import TokenBatch
from rlhf_dialog.models.trunk import trunk_of
from rlhf_dialog.training.supervised.new_tokenizers import new_causal_lm, new_tokenizer
from rlhf_dialog.training.supervised.settings import SFTConfig
from rlhf_dialog.training.supervised.stage import Encoded, SupervisedStage, drawn

logger = logging.getLogger(__name__)
IGNORED = -100  # the label of a token without loss
ADAPTER = "policy"
POINTS, BEST = "points.json", "best.safetensors"  # in a checkpoint
LOGITS_AT_ONCE = 2**28  # 1 GiB in float32, of a validation where logits cannot be computed apart from the trunk


def read_prompts(config: SFTConfig, split: str, limit: int | None, report: Callable[[str], None]) -> Sequence[Dialogue]:
    """The prompts of a split that have a reference, at most `limit` of them drawn by the seed."""
    loaded = PromptRules.from_keys(config).load(config.data_path, split)
    prompts: Sequence[Dialogue] = loaded.select(~loaded.flagged(NO_REFERENCE))
    if not prompts:
        raise UserError(
            f"data_path: the {split} split of '{config.data_path}' has no prompt with a reply to learn from"
        )
    prompts = drawn(prompts, limit, config.seed)
    report(f"{split}: {len(prompts)} of {len(loaded)} prompts")
    return prompts


class SFTTrainer(Trainer):
    """Minimises the mean of `summed_loss` over the labelled tokens of a step. Raises UserError in several processes."""

    def __init__(self, **arguments: Any):
        super().__init__(**arguments, data_collator=pad_right)
        if self.args.world_size > 1:
            raise UserError(
                f"supervised fine-tuning runs in one process, found {self.args.world_size}; start it with python"
            )
        self.model_accepts_loss_kwargs = True  # so that `compute_loss` hears how many labels all microbatches have
        self.policy = Policy(arguments["model"].eval(), use_amp=self.args.bf16)
        _ = self.policy.has_plain_head  # is tried without dropout

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The share of a microbatch in the loss of its step."""
        return summed_loss(self.policy, inputs) / num_items_in_batch


def summed_loss(policy: Policy, batch: dict[str, Tensor]) -> Tensor:
    """The negative log-likelihood in nats, a scalar, of all labelled tokens of a batch as of `pad_right`.

    Logits are computed where the next token has a label, as many at a time as in PPO.
    """
    ids, labelled = batch["input_ids"], batch["labels"][:, 1:] != IGNORED
    packed = TokenBatch(ids[:, :1], batch["attention_mask"][:, :1].bool(), ids[:, 1:], labelled).pack()
    features, _ = policy.features(packed, padded=policy.lm.training)  # packed attention has no dropout
    return -policy.predict(features, packed, temperature=1.0).logprobs.sum()


class SFT(SupervisedStage[SFTConfig]):
    """Prompts become a model that answers; the report holds the configuration, counts and losses."""

    report_file = "training.json"

    def read(self) -> tuple[Sequence[Dialogue], Sequence[Dialogue]]:
        if self.config.trust_remote_code and (self.config.tokenizer_path or self.config.model_path):
            warn_of_remote_code({"model_path": self.config.model_path, "tokenizer_path": self.config.tokenizer_path})
        self.config = settle_separator(self.config)
        training = read_prompts(self.config, "train", self.config.max_train_prompts, self.report)
        try:
            return training, read_prompts(self.config, "validation", self.config.max_eval_prompts, self.report)
        except MissingSplit as error:
            logger.warning("no perplexity and no early stopping: %s", error)
            return training, []

    def start(self) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        lm, tokenizer = starting_point(self.config, self.training)
        keys = self.config
        self.encoder = templates.prompt_encoder(
            tokenizer, keys.turn_separator, keys.max_prompt_length, keys.system_prompt
        )
        self.training, self.held_out = (
            templates.keep_with_room(self.encoder, some) for some in (self.training, self.held_out)
        )
        templates.warn_about_replies(self.encoder)
        templates.warn_about_marks(self.encoder, self.training, self.held_out)
        warn_about_cut(self.encoder, chain(self.training, self.held_out))
        self.positions = num_positions(lm)
        if self.positions and keys.max_prompt_length >= self.positions:
            raise UserError(
                f"max_prompt_length: {keys.max_prompt_length} leaves no room for a reply in {self.positions} positions; lower it"
            )
        if keys.use_lora:
            lora.add_adapters(lm, [ADAPTER], keys.lora_r, keys.lora_alpha, keys.lora_target_modules, keys.seed)
            lora.warn_of_untrained_end(lm, tokenizer, keys.turn_separator)
        if keys.activation_checkpointing:
            recompute_layers(trunk_of(lm))
        return lm, tokenizer

    def learn(self) -> None:
        rows = Examples(self.training, self._example)
        logger.info("%d prompts are learned in %d sequences", len(self.training), len(rows))
        self.watch = HeldOutLoss([*map(self._example, self.held_out)], self.config)
        self.fine_tune(rows)

    def fine_tune(self, rows: Encoded) -> None:
        """With `patience`, the model ends with the weights of the lowest validation loss."""

        def trainer(**arguments: Any) -> Trainer:
            made = SFTTrainer(**arguments, callbacks=[self.watch])
            self.watch.measure(self.model, step=0)
            return made

        batch = self.config.batch_size
        microbatch = self.config.per_device_microbatch_size or batch
        made = self.run_trainer(
            rows,
            trainer,
            TrainingArguments,
            self.watch.restore,
            remove_unused_columns=False,
            per_device_train_batch_size=microbatch,
            gradient_accumulation_steps=batch // microbatch,
        )
        self.train_losses = [{"step": x["step"], "loss": x["loss"]} for x in made.state.log_history if "loss" in x]
        if self.watch.best_weights is not None:
            self.model.load_state_dict(self.watch.best_weights, strict=not self.config.use_lora)

    def save(self) -> None:
        """As every stage; adapters are merged into the weights, and a chat template that was not learned is put away."""
        state = lora.merged_state(self.model, ADAPTER) if self.config.use_lora else None
        self.model.save_pretrained(self.folder, state_dict=state)
        tokenizer = copy(self.tokenizer)
        if tokenizer.chat_template and not isinstance(self.encoder, templates.TemplateEncoder):
            names = {"turn_separator", "context_size", "max_prompt_length", "system_prompt"}
            settings = self.config.model_dump(include=names, exclude_none=True)
            tokenizer.chat_template = agent_template(self.encoder, settings)
        tokenizer.save_pretrained(self.folder)
        if (text := kept_system_prompt(self.config, self.training, self.tokenizer)) is not None:
            set_system_prompt(self.folder, text, self.config.trust_remote_code)

    def _example(self, dialogue: Dialogue) -> dict[str, Any]:
        return example(self.encoder, dialogue, self.config.learn_eos, self.positions)

    def measure(self) -> dict[str, Any]:
        return {
            "config": self.config.model_dump(),
            "num_train_prompts": len(self.training),
            "num_validation_prompts": len(self.held_out),
            "num_parameters": self.num_parameters,
            "validation": self.watch.points,
            "train": self.train_losses,
            "best_step": self.watch.best_step,
        }


def starting_point(config: SFTConfig, train: Sequence[Dialogue]) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model and tokenizer of the configuration, or new ones. Raises UserError when they do not fit together."""
    source = config.tokenizer_path or config.model_path
    if source:
        key = "tokenizer_path" if config.tokenizer_path else "model_path"
        tokenizer = read_tokenizer(source, key, config.trust_remote_code)
        templates.fix_date(tokenizer, config.date_string)
    elif config.turn_separator == templates.CHAT_TEMPLATE:
        raise UserError(
            "turn_separator: chat_template needs a tokenizer with a chat template, and a new tokenizer has none; set "
            "model_path or tokenizer_path, or give turn_separator a text such as <EOU>"
        )
    else:
        with_prompts, length = config.tokenizer_texts == "dialogues", config.n_positions
        tokenizer = new_tokenizer(train, config.vocab_size, config.turn_separator, length, with_prompts)
    if config.model_path:
        lm = load_causal_lm(config.model_path, "model_path", config.trust_remote_code, config.allow_pickle_weights)
    else:
        widths = {name: getattr(config, name) for name in ("n_layer", "n_head", "n_embd", "n_positions", "dropout")}
        lm = new_causal_lm(config.architecture, tokenizer, **widths)
    rows: Any = lm.get_input_embeddings().num_embeddings
    if len(tokenizer) > rows:
        raise UserError(
            f"tokenizer_path: the tokenizer has {len(tokenizer)} tokens, but the model has embeddings for only {rows}; "
            "use the model's own tokenizer"
        )
    return lm, tokenizer


def example(
    encoder: templates.TurnEncoder, dialogue: Dialogue, learn_eos: bool = False, positions: int | None = None
) -> dict[str, Any]:
    """Token ids of prompt and target; only the target (reply, separator and, with `learn_eos`, eos) has labels.

    With a chat template the target is the reply with its end-of-turn token; `learn_eos` has no effect. A target that is too
    long for the model's `positions` is cut at its end.
    """
    prompt, target = encoder.encode_example(dialogue.prompt_turns, dialogue.reference or "", dialogue.system, learn_eos)
    ids = (prompt + target)[:positions]
    labels = ([IGNORED] * len(prompt) + target)[:positions]
    return {"input_ids": ids, "labels": labels, "length": len(ids)}


def merge_prefixes(rows: Iterable[dict[str, Any]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows, each with the number of those that it is made of: one whose ids begin the next row is merged into that row.

    So fewer rows have the same labels after the same tokens.
    """
    count, last = 0, dict[str, Any]()
    for row in rows:
        if last and row["input_ids"][: last["length"]] == last["input_ids"]:
            own = row["labels"][: last["length"]]
            labels = [a if b == IGNORED else b for a, b in zip(last["labels"], own, strict=True)]
            count, last = count + 1, {**row, "labels": labels + row["labels"][last["length"] :]}
        else:
            if last:
                yield count, last
            count, last = 1, row
    if last:
        yield count, last


class Examples(Encoded):
    """The examples of dialogues, merged by `merge_prefixes`."""

    def rows(self) -> Iterator[dict[str, Any]]:
        self.starts = array("Q", [0])  # the number of the first dialogue of each row
        for count, row in merge_prefixes(map(self.encode, self.items)):
            self.starts.append(self.starts[-1] + count)
            yield row

    def row(self, number: int) -> dict[str, Any]:
        some = range(self.starts[number], self.starts[number + 1])
        ((_, row),) = merge_prefixes(self.encode(self.items[i]) for i in some)
        return row


@dataclass
class HeldOutLoss(TrainerCallback):
    """Measures the loss per token on held-out prompts during the training; with `patience`, keeps the best weights."""

    rows: list[dict[str, Any]]
    config: SFTConfig
    points: list[dict[str, float]] = field(default_factory=list)  # step, loss, perplexity
    best_step: int | None = None
    best_weights: dict[str, torch.Tensor] | None = None

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write what was measured, and the best weights, into the checkpoint."""
        checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        write_json(checkpoint / POINTS, {"points": self.points, "best_step": self.best_step})
        if self.best_weights:
            save_file({name: one.contiguous().clone() for name, one in self.best_weights.items()}, checkpoint / BEST)

    def restore(self, checkpoint: Path) -> None:
        """Take back what `on_save` wrote."""
        kept = load_json(checkpoint / POINTS)
        self.points, self.best_step = kept["points"], kept["best_step"]
        self.best_weights = load_file(checkpoint / BEST) if (checkpoint / BEST).is_file() else None

    def measure(self, lm: PreTrainedModel, step: int) -> bool:
        """Measure, log and store the loss in nats per labelled token; True when `patience` is exhausted."""
        if not self.rows:
            return False
        patched = lm.__dict__.pop("forward", None)  # the trainer's own, which has autocast
        try:
            loss = token_loss(lm, self.rows, batch_size=64)
        finally:
            lm.__dict__.update({"forward": patched} if patched else {})
        best = min((point["loss"] for point in self.points), default=math.inf)
        self.points.append({"step": step, "loss": loss, "perplexity": math.exp(loss)})
        logger.info("step %d: validation loss %.3f, perplexity %.1f per token", step, loss, math.exp(loss))
        if self.config.patience is None:
            return False
        if loss < best:
            self.best_step = step
            frozen = {name for name, p in lm.named_parameters(remove_duplicate=False) if not p.requires_grad}
            changed = {name: tensor for name, tensor in lm.state_dict().items() if name not in frozen}
            self.best_weights = {name: tensor.detach().cpu().clone() for name, tensor in changed.items()}
        return sum(point["step"] > (self.best_step or 0) for point in self.points) >= self.config.patience

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        interval = math.ceil(state.max_steps / self.config.evals)
        due = state.global_step % interval == 0 or state.global_step == state.max_steps
        if due and self.measure(model, state.global_step):
            text = "stopped: the validation loss has not fallen in %d validations (patience)"
            logger.info(text, self.config.patience)
            control.should_training_stop = True


@torch.no_grad()
@without_tf32()
def token_loss(lm: PreTrainedModel, rows: list[dict[str, Any]], batch_size: int) -> float:
    """Mean negative log-likelihood in nats over all labelled tokens of `rows`, in float32; dropout is off while it measures."""
    was_training, total, count = lm.training, 0.0, 0
    policy, ordered = Policy(lm.eval()), sorted(rows, key=lambda row: row["length"])
    if not policy.has_plain_head:
        batch_size = max(1, min(batch_size, LOGITS_AT_ONCE // (num_embeddings(lm) * ordered[-1]["length"])))
    for start in range(0, len(ordered), batch_size):
        batch = pad_right(ordered[start : start + batch_size])
        count += int((batch["labels"][:, 1:] != IGNORED).sum())
        total += summed_loss(policy, {**batch, "input_ids": batch["input_ids"].to(lm.device)}).item()
    lm.train(was_training)
    return total / count


def pad_right(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """`input_ids`, `attention_mask`, `labels` (B, longest); the mask comes from the lengths, never from a pad id."""
    width = max(row["length"] for row in rows)
    return {
        "input_ids": torch.tensor([row["input_ids"] + [0] * (width - row["length"]) for row in rows]),
        "labels": torch.tensor([row["labels"] + [IGNORED] * (width - row["length"]) for row in rows]),
        "attention_mask": torch.tensor([[1] * row["length"] + [0] * (width - row["length"]) for row in rows]),
    }
