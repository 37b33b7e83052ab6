"""A model with one number as its output: loaded from what this package, TRL or OpenRLHF wrote, and asked for many dialogues.

N dialogues, L tokens of the longest one in a batch.
"""

import math
import re
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.models.cpu_linear import use_onednn
from rlhf_dialog.models.loading import read_tokenizer
from rlhf_dialog.models.pretrained import load_pretrained, readable
from rlhf_dialog.rewards.arguments import ARGS
from rlhf_dialog.rewards.classifier import ROUND_TO, Ids, check_weights, logits_in_batches, uses_bf16
from rlhf_dialog.rewards.intent import max_input_length
from rlhf_dialog.rewards.reward_inputs import FORMS, PAIR, SEPARATORS, TEXT, RewardInput, trained_form

HEAD = "value_head_prefix"  # in a config.json that OpenRLHF wrote: the name of the linear layer for the score
PROBES = [Dialogue(["Hello ."], "Hi ."), Dialogue(["Hello .", "Hi .", "How are you ?"], "Fine , and you ?")]


@dataclass(frozen=True)
class ScalarOptions:
    """The arguments of RewardModel of these names; None: what the model's folder or the device says."""

    batch_size: int | None = None
    precision: str = "auto"
    input_form: str | None = None
    turn_separator: str | None = None
    max_length: int | None = None


DEFAULTS = ScalarOptions()


class ScalarModel:
    """A frozen model, its tokenizer, and how it reads a dialogue. `key`: the configuration key that named `path`.

    Raises UserError when it cannot be found or loaded, has more than one label, or does not fit its tokenizer.
    """

    def __init__(self, path: str, key: str, options: ScalarOptions = DEFAULTS):
        self.path, self.key, self.options = path, key, options
        self.tokenizer, self.model = load_scalar_model(path, key)
        config = self.model.config
        with readable(path, key, "a reward model"):
            form = options.input_form or trained_form(self.tokenizer, config)
            if form not in FORMS:
                stored = f"{key}: rlhf_dialog_input in the config.json of '{path}'"
                place = f"{ARGS}.input_form" if options.input_form else stored
                raise UserError(f"{place}: {form!r} is not one of {', '.join(FORMS)}")
            choices = (options.turn_separator, getattr(config, "rlhf_dialog_separator", None), SEPARATORS[form])
            separator = str(next(choice for choice in choices if choice is not None))
            if not separator and form not in (TEXT, PAIR):
                what = "'' leaves nothing between turns, which is for input_form: text or pair"
                raise UserError(f"{ARGS}.turn_separator: {what}")
            limit = max_input_length(self.tokenizer, self.model)
            limit = min(limit, options.max_length or limit)
            # models of other programs leave thinking to the template
            thinking = None if getattr(config, "rlhf_dialog_input", None) is None else False
            self.input = RewardInput(self.tokenizer, form, separator, limit, is_openrlhf(config), thinking)
            self.pad_id = padding_id(self.model, self.tokenizer)
            self._try()

    def _try(self) -> None:
        """Score short and long dialogues. Raises UserError when an output is not finite, or the files do not fit together."""
        long = Dialogue(["Hello ."], "Hi ! " * min(self.input.max_length, 2000))
        found = self.outputs([*PROBES, long])
        if not all(map(math.isfinite, found)):
            why = "its weights are damaged, or its training diverged"
            raise UserError(f"{self.key}: '{self.path}' gives {found} for three short dialogues; {why}")

    def outputs(self, dialogues: list[Dialogue]) -> list[float]:
        """The output for each of the N dialogues, in their order; it does not depend on the others, up to rounding."""
        inputs = [self.input.encode(dialogue) for dialogue in dialogues]
        pad = partial(pad_right, pad_id=self.pad_id, max_length=self.input.max_length)
        bf16 = self.uses_bf16(self.model.device.type)
        return logits_in_batches(self.model, inputs, pad, self.options.batch_size, bf16).reshape(-1).tolist()

    def uses_bf16(self, device: str) -> bool:
        """Whether it computes in bfloat16 on this type of device; with `auto` not on a CPU, where scores would lose digits."""
        precision = self.options.precision
        return uses_bf16("fp32" if precision == "auto" and device == "cpu" else precision, device)

    def normalisation(self, normalize: bool | None) -> tuple[float, float]:
        """Mean and deviation from the config.json; 0 and 1 if `normalize` is False, or if it is None and there are none.

        Raises UserError when they are missing but `normalize` is True, or cannot be used.
        """
        stored = [getattr(self.model.config, name, None) for name in ("mean", "std")]
        if normalize is False or (normalize is None and stored == [None, None]):
            return 0.0, 1.0
        if stored == [None, None]:
            what = f"the config.json of '{self.path}' has no mean and std; leave normalize out"
            raise UserError(f"{ARGS}.normalize: true, but {what}")
        mean, std = (x if isinstance(x, int | float) and math.isfinite(x) else math.nan for x in stored)
        if not (math.isfinite(mean) and std > 0):
            raise UserError(
                f"{self.key}: mean {stored[0]!r:.40} and std {stored[1]!r:.40} in the config.json of '{self.path}' are not a "
                f"mean and a deviation above 0; correct them, or set {ARGS}.normalize: false"
            )
        return float(mean), float(std)


def load_scalar_model(path: str, key: str) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    """Tokenizer and frozen model in fp32, from a folder or the Hub; safetensors only, no code. Raises as ScalarModel does."""
    config = load_pretrained(AutoConfig, path, key)
    if not is_openrlhf(config) and config.num_labels != 1:
        raise UserError(
            f"{key}: '{path}' has {config.num_labels} labels, but a reward model has one; give the folder of one that was "
            "trained on preferences"
        )
    tokenizer = read_tokenizer(path, key, as_saved=True)  # TRL trains on what an agent's template writes
    options: dict[str, Any] = {"num_labels": 1, "dtype": torch.float32, "output_loading_info": True}
    if is_openrlhf(config) and tokenizer.eos_token_id is None:
        what = "has no end-of-text token (eos_token), which ends its texts; set one"
        raise UserError(f"{key}: the tokenizer of '{path}' {what}")
    if (head := str(getattr(config, HEAD, "score"))) != "score":
        options["key_mapping"] = {rf"^{re.escape(head)}\.": "score."}
    model, report = load_pretrained(AutoModelForSequenceClassification, path, key, **options)
    with readable(path, key, "a reward model"):
        check_weights(path, key, tokenizer, model, report["missing_keys"], "a reward model")
        use_onednn(model)
        model.config.use_cache = False
        if is_openrlhf(config):
            other = 0 if tokenizer.eos_token_id else 1  # not the last token of a text, by which the model finds its end
            model.config.get_text_config().pad_token_id = other
    return tokenizer, model.eval().requires_grad_(False)


def is_openrlhf(config: Any) -> bool:
    """Whether OpenRLHF wrote the folder of this config.json."""
    return getattr(config, HEAD, None) is not None


def padding_id(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """The id to pad with: that of the model, which finds the end of a text by it, else the tokenizer's, which it then gets."""
    config: Any = model.config.get_text_config()
    known = (config.pad_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id)
    pad_id = next((i for i in known if i is not None), None)
    if pad_id is None:
        what = "has a pad token, which marks the end of a text; set one"
        raise UserError(f"neither its config.json nor its tokenizer {what}")
    config.pad_token_id = pad_id
    return int(pad_id)


def pad_right(rows: list[Ids], pad_id: int, max_length: int) -> dict[str, Tensor]:
    """`input_ids`, `attention_mask` and what else the rows have, each (N, L), with L rounded up to a multiple of 8."""
    lengths = [len(row["input_ids"]) for row in rows]
    width = min(-(-max(lengths) // ROUND_TO) * ROUND_TO, max(max_length, *lengths))
    tensors = {
        name: torch.tensor([row[name] + [fill] * (width - len(row[name])) for row in rows])
        for name, fill in (("input_ids", pad_id), ("token_type_ids", 0))
        if name in rows[0]
    }
    return tensors | {"attention_mask": torch.tensor([[1] * n + [0] * (width - n) for n in lengths])}
