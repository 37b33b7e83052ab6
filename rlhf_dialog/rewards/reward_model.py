"""RewardModel: the score that a model learned from preferences."""

import math
from typing import Any, Self

from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards.arguments import ARGS, choice, number, whole
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.rewards.classifier import PRECISIONS

REWARD_MODEL = "reward model"  # its name among the frozen models of a reward


@RewardFactory.register("RewardModel")
class RewardModel(BaseReward):
    """The score of a sequence classifier with one label, which reads the dialogue as text, with its own tokenizer.

    `model`: a folder or Hub name, in safetensors, that `train_preference_model.py`, TRL's RewardTrainer or OpenRLHF wrote. The
    score is (output - mean) / std with the `mean` and `std` of the folder's config.json (`normalize` false: the output; true: a
    folder without them is refused; by default they are used where they are), between -`clip` and `clip`, less `length_price`
    for each word of the response.

    `input_form` and `turn_separator` say how the dialogue is written, where the folder does not say it: see `reward_inputs`;
    `max_length` its tokens. `batch_size`: texts at a time. `precision`: `fp32`, `bf16`, or `auto` (bf16 on a GPU that has it).
    Raises UserError for a model that cannot be found, loaded or used.
    """

    name = "reward_model"
    uses_device = True

    def __init__(  # noqa: PLR0913 - the keys of its YAML
        self,
        model: str,
        normalize: bool | None = None,
        clip: float | None = None,
        length_price: float = 0.0,
        batch_size: int | None = None,
        precision: str = "auto",
        input_form: str | None = None,
        turn_separator: str | None = None,
        max_length: int | None = None,
    ):
        if normalize not in (None, True, False):
            raise UserError(f"{ARGS}.normalize: {normalize!r} must be true, false or null")
        for key, value in {"input_form": input_form, "turn_separator": turn_separator}.items():
            if not isinstance(value, str | None):
                raise UserError(f"{ARGS}.{key}: {value!r:.100} must be text, in quotes, or null")
        for key, value in {"batch_size": batch_size, "max_length": max_length}.items():
            if value is not None:
                whole(key, value)
        self.clip = None if clip is None else number("clip", clip, "a number above 0, or null", lambda x: x > 0)
        self.length_price = number("length_price", length_price)
        choice("precision", precision, PRECISIONS)
        from rlhf_dialog.rewards.scalar_model import ScalarModel, ScalarOptions

        options = ScalarOptions(batch_size, precision, input_form, turn_separator, max_length)
        self.scalar = ScalarModel(str(model), f"{ARGS}.model", options)
        self.mean, self.std = self.scalar.normalisation(normalize)

    def __call__(self, dialogues: list[Dialogue]) -> list[float]:
        """The score of each dialogue; NaN where the output of the model is NaN or inf."""
        scores = [(output - self.mean) / self.std for output in self.outputs(dialogues)]
        if self.clip is not None:
            scores = [min(max(score, -self.clip), self.clip) for score in scores]  # NaN stays NaN
        return [s - self.length_price * len(d.response.split()) for s, d in zip(scores, dialogues, strict=True)]

    def outputs(self, dialogues: list[Dialogue]) -> list[float]:
        """The model's own output for each dialogue, before `normalize` and everything after it."""
        with self.at_work():
            return [output if math.isfinite(output) else math.nan for output in self.scalar.outputs(dialogues)]

    def move_to(self, device: str) -> Self:
        """Move the model; on a GPU that runs it in bf16, its linear layers keep the 16 bits that its checkpoint has."""
        from rlhf_dialog.models.precision import narrow

        if device.startswith("cuda") and self.scalar.uses_bf16("cuda"):
            narrow(self.scalar.model)
        return super().move_to(device)

    def frozen_models(self) -> dict[str, Any]:
        return {REWARD_MODEL: self.scalar.model}

    @classmethod
    def model_paths(cls, args: dict[str, Any]) -> dict[str, str]:
        return {REWARD_MODEL: str(args["model"])} if args.get("model") else {}
