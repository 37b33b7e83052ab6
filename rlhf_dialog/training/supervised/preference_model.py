"""Preference model: train a reward model, which gives a dialogue one number, on pairs of replies."""

import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from rlhf_dialog.data.chat_template import rows_rendered, texts_of, written_tokens
from rlhf_dialog.data.dialogue import AUTO, CHAT_TEMPLATE, Dialogue
from rlhf_dialog.data.preferences import Pairs, Preference, PreferencePair, load_pairs, split_by_prompt
from rlhf_dialog.errors import MissingSplit, UserError
from rlhf_dialog.evaluation.preferences import markdown, measure_pairs
from rlhf_dialog.evaluation.replies import generate_replies
from rlhf_dialog.models.chat_agent import AgentSettings, ChatAgent, read_settings, settle_separator
from rlhf_dialog.models.loading import read_tokenizer
from rlhf_dialog.models.pretrained import load_pretrained
from rlhf_dialog.rewards.intent import check_tokenizer, max_input_length
from rlhf_dialog.rewards.reward_model import RewardModel
from rlhf_dialog.rewards.scalar_model import DIALOGUE, RewardInput, reads_in_pairs
from rlhf_dialog.training.supervised.settings import PreferenceConfig
from rlhf_dialog.training.supervised.stage import Encoded, SupervisedStage, drawn

logger = logging.getLogger(__name__)
KEY = "model_path"


def sample_replies(config: PreferenceConfig, prompts: list[Dialogue], turn_separator: str) -> list[Dialogue]:
    """Each prompt with one reply of `model_path`, sampled with the settings of its folder, else at temperature 1.

    Raises UserError when it is not a causal LM, or has too few positions.
    """
    usual = AgentSettings(turn_separator=turn_separator, max_new_tokens=config.max_new_tokens)
    try:
        settings = read_settings(Path(config.model_path), usual)
        agent = ChatAgent.load(config.model_path, device=config.device, settings=settings)
        agent.set_precision(config)
    except UserError as error:
        raise error.with_location(KEY, "--agent") from error
    return generate_replies(agent, prompts, agent.sampling, config.seed, title="sampled replies").dialogues


class PreferenceModel(SupervisedStage[PreferenceConfig]):
    """Pairs of replies become a reward model; the report is that on held-out pairs, and says how scores are normalised."""

    def read(self) -> tuple[Sequence[PreferencePair], Pairs]:
        return read_pairs(self.config, self.report)

    def start(self) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        model, tokenizer = starting_point(self.config)
        self.inputs = input_of(self.config, model, tokenizer)
        self.config = self.config.model_copy(update={"turn_separator": self.inputs.separator})
        if self.inputs.form == CHAT_TEMPLATE:
            self.training, self.held_out = (_unrendered(tokenizer, some) for some in (self.training, self.held_out))
        return model, tokenizer

    def learn(self) -> None:
        from trl import RewardConfig, RewardTrainer

        rows = Encoded(self.training, lambda pair: encode_pair(pair, self.inputs))
        self.run_trainer(rows, RewardTrainer, RewardConfig, max_length=None)  # with it, trl leaves out long pairs
        if not is_finite(self.model):
            rate = self.config.learning_rate
            raise UserError(f"learning_rate: {rate} made the weights of the model NaN or inf; lower it")

    def save(self) -> None:
        """The folder's config.json says how a dialogue is read."""
        form, separator = self.inputs.form, self.inputs.separator
        self.model.config.update({"rlhf_dialog_input": form, "rlhf_dialog_separator": separator})
        super().save()

    def measure(self) -> dict[str, Any]:
        shown = list(drawn(self.held_out, self.config.max_report_pairs, self.config.seed))
        reward = RewardModel(str(self.folder), normalize=False, precision="fp32").move_to(str(self.model.device))
        result = measure_pairs(shown, reward.outputs, self.config.seed)  # type: ignore[attr-defined]
        result["normalisation"] = normalisation(self.config, reward, shown, self.report)  # type: ignore[arg-type]
        self.model.config.update({name: result["normalisation"][name] for name in ("mean", "std")})
        self.model.config.save_pretrained(self.folder)
        return result | {"num_train_pairs": len(self.training), "num_parameters": self.num_parameters}

    def page(self, report: dict[str, Any]) -> str:
        return markdown(report)


# -- data


def read_pairs(config: PreferenceConfig, report: Callable[[str], None]) -> tuple[Sequence[PreferencePair], Pairs]:
    """Pairs to learn from and pairs held out, which share no prompt. Raises UserError when one of them would be empty."""
    key = config.preference
    preference = Preference(**key) if isinstance(key, dict) else key
    training = load_pairs(config.data_path, "train", config.columns, config.split, preference)
    try:
        held_out = load_pairs(config.data_path, "validation", config.columns, config.split, preference)
    except MissingSplit:
        training, held_out = split_by_prompt(training, config.held_out, config.seed)
    apart = training.select(~np.isin(training.prompts, held_out.prompts))
    if not apart or not held_out:
        path = config.data_path
        raise UserError(f"data_path: '{path}' has no training pair whose prompt is not in the validation split")
    if len(apart) < len(training):
        report(f"train: {len(training) - len(apart)} pairs left out, because their prompts are in the validation split")
    kept = drawn(apart, config.max_train_pairs, config.seed)
    report(f"{len(kept)} pairs to learn from, {len(held_out)} held out, of other prompts")
    return kept, held_out


def _unrendered(tokenizer: PreTrainedTokenizerBase, pairs: Sequence[PreferencePair]) -> Sequence[PreferencePair]:
    rows = ((i, pair.where, texts_of(pair.chosen) + texts_of(pair.rejected)) for i, pair in enumerate(pairs))
    rendered = rows_rendered(written_tokens(tokenizer), rows, len(pairs))
    if isinstance(pairs, Pairs):
        return pairs.select(~np.isin(np.arange(len(pairs)), list(rendered)))
    return [pair for i, pair in enumerate(pairs) if i not in rendered]


def encode_pair(pair: PreferencePair, inputs: RewardInput) -> dict[str, Any]:
    """The columns of TRL's RewardTrainer for a pair that is already token ids, and the `length` of the longer side.

    Raises UserError with the pair's place when both sides are the same tokens.
    """
    ids = {f"{side}_ids": inputs.encode(getattr(pair, side))["input_ids"] for side in ("chosen", "rejected")}
    if ids["chosen_ids"] == ids["rejected_ids"]:
        raise UserError(
            f"{pair.where}: 'chosen' and 'rejected' are the same {len(ids['chosen_ids'])} tokens for this tokenizer and "
            "max_length; remove the row, or raise max_length"
        )
    margin = {} if pair.margin is None else {"margin": pair.margin}
    return ids | margin | {"length": max(map(len, ids.values()))}


# -- model


def starting_point(config: PreferenceConfig) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer of `model_path`, with one output; a head that is not there yet gets weights of deviation 1/sqrt(d+1).

    Raises UserError when they cannot be loaded, do not fit together, or are damaged.
    """
    tokenizer = read_tokenizer(config.model_path, KEY)
    model, loading = load_pretrained(
        AutoModelForSequenceClassification,
        config.model_path,
        KEY,
        only_trunk=True,
        output_loading_info=True,
        num_labels=1,
        dtype=torch.float32,
    )
    model.config.problem_type = None  # of a classifier of several labels: with it, the saved model could not be loaded
    check_tokenizer(config.model_path, KEY, tokenizer, model)
    if not is_finite(model):
        raise UserError(f"{KEY}: weights of '{config.model_path}' are NaN or inf; give a model that is not damaged")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    tokenizer.padding_side = "right"
    _new_head(model, {*loading["missing_keys"], *(key[0] for key in loading["mismatched_keys"])})
    return model, tokenizer


def is_finite(model: nn.Module) -> bool:
    """Whether no weight is NaN or inf."""
    return all(bool(torch.isfinite(p).all()) for p in model.parameters())


def _new_head(model: PreTrainedModel, new: set[str]) -> None:
    """Weights with deviation 1/sqrt(d+1) and no bias for the linear layer to one number, if it is new."""
    name, head = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear) and m.out_features == 1][-1]
    if f"{name}.weight" in new:
        nn.init.normal_(head.weight, std=1 / math.sqrt(head.in_features + 1))
        if head.bias is not None:
            nn.init.zeros_(head.bias)


def input_of(config: PreferenceConfig, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> RewardInput:
    """How the model reads a dialogue."""
    if config.turn_separator == AUTO and reads_in_pairs(tokenizer):
        config = config.model_copy(update={"turn_separator": str(tokenizer.sep_token)})
    config = settle_separator(config)
    form = CHAT_TEMPLATE if config.turn_separator == CHAT_TEMPLATE else DIALOGUE
    tokenizer.model_max_length = min(max_input_length(tokenizer, model), config.max_length)
    return RewardInput(tokenizer, form, config.turn_separator, tokenizer.model_max_length)


# -- what the scores are


def normalisation(
    config: PreferenceConfig, reward: RewardModel, pairs: list[PreferencePair], report: Callable[[str], None]
) -> dict[str, Any]:
    """`mean` and `std` of the scores of sampled replies to held-out prompts, or of the held-out replies, and `of` what."""
    sides = [pair.chosen for pair in pairs if pair.chosen.prompt_turns]
    prompts = [Dialogue(side.prompt_turns, system=side.system) for side in sides]
    dialogues: list[Dialogue] = []
    if config.num_samples and prompts and is_causal(config.model_path):
        asked = [prompts[i % len(prompts)] for i in range(config.num_samples)]
        separator = reward.scalar.input.separator  # type: ignore[union-attr]
        dialogues = sample_replies(config, asked, separator)
        source = f"{len(dialogues)} replies sampled from {config.model_path}"
    else:
        dialogues = [side for pair in pairs for side in (pair.chosen, pair.rejected)]
        source = f"{len(dialogues)} held-out replies"
    scores = np.asarray(reward.outputs(dialogues))
    report(f"scores of {source}: mean {scores.mean():.4f}, deviation {scores.std():.4f}")
    std = float(scores.std())
    if not std > 0:
        logger.warning("all %s have the same score, so the stored deviation is 1", source)
    return {"mean": float(scores.mean()), "std": std if std > 0 else 1.0, "of": source}


def is_causal(path: str) -> bool:
    """Whether the folder or Hub name is a causal LM by what its config.json says, so that it can be asked for replies."""
    names = load_pretrained(AutoConfig, path, KEY).architectures or []
    return any(name.endswith(("CausalLM", "LMHeadModel")) for name in names)
