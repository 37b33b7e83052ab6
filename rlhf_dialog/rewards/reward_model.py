"""RewardModel: the score that a model learned from preferences, or several such models together."""

import math
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards.base import ARGS, DEVIATION, BaseReward, choice, free_name, number, whole
from rlhf_dialog.rewards.intent import PRECISIONS

if TYPE_CHECKING:
    from rlhf_dialog.rewards.scalar_model import ScalarModel, ScalarOptions

REWARD_MODEL = "reward model"  # its name among the frozen models of a reward
COMBINE = ("mean", "min", "uncertainty")


@RewardFactory.register("RewardModel")
class RewardModel(BaseReward):
    """The score of a sequence classifier with one label, which reads the dialogue as text, with its own tokenizer.

    `model`: a folder or Hub name, in safetensors, that `train_preference_model.py`, TRL's RewardTrainer or OpenRLHF wrote; or
    `members`: a list of them. The score is (output - mean) / std with the `mean` and `std` of the folder's config.json
    (`normalize` false: the output; true: a folder without them is refused; by default they are used where they are), between
    -`clip` and `clip`, less `length_price` for each word of the response. `combine`: the `mean` of the members, their `min`,
    or with `uncertainty` their mean less `uncertainty_coef` times their population variance; the mean deviation of the members
    is logged as `reward/<name>_std`.

    `input_form` and `turn_separator` say how the dialogue is written, where the folder does not say it: see `scalar_model`;
    `max_length` its tokens. `batch_size`: texts at a time. `precision`: `fp32`, `bf16`, or `auto` (bf16 on a GPU that has it).
    Raises UserError for a model that cannot be found, loaded or used.
    """

    name = "reward_model"
    model_args: ClassVar = {"model": REWARD_MODEL, "members[]": REWARD_MODEL}
    uses_device = True

    def __init__(  # noqa: PLR0913 - the keys of its YAML
        self,
        model: str | None = None,
        normalize: bool | None = None,
        clip: float | None = None,
        length_price: float = 0.0,
        batch_size: int | None = None,
        precision: str = "auto",
        members: list[str] | None = None,
        combine: str = "mean",
        uncertainty_coef: float = 1.0,
        input_form: str | None = None,
        turn_separator: str | None = None,
        max_length: int | None = None,
    ):
        if bool(model) == bool(members) or not isinstance(members, list | None):
            raise UserError(f"{ARGS}: give either model, a folder or Hub name, or members, a list of them")
        if normalize not in (None, True, False):
            raise UserError(f"{ARGS}.normalize: {normalize!r} must be true, false or null")
        for key, value in {"input_form": input_form, "turn_separator": turn_separator}.items():
            if not isinstance(value, str | None):
                raise UserError(f"{ARGS}.{key}: {value!r:.100} must be text, in quotes, or null")
        for key, size in {"batch_size": batch_size, "max_length": max_length}.items():
            if size is not None:
                whole(key, size)
        self.clip = None if clip is None else number("clip", clip, "a number above 0, or null", lambda x: x > 0)
        self.length_price = number("length_price", length_price)
        self.uncertainty_coef = number("uncertainty_coef", uncertainty_coef)
        self.combine, self._deviation = choice("combine", combine, COMBINE), 0.0
        choice("precision", precision, PRECISIONS)
        from rlhf_dialog.rewards import scalar_model

        options = scalar_model.ScalarOptions(batch_size, precision, input_form, turn_separator, max_length)
        self.members: list[RewardModel] = []
        self.scalar: ScalarModel | None = None
        if members:
            self.members = [_member(i, path, normalize, options) for i, path in enumerate(members)]
        else:
            self.scalar = scalar_model.ScalarModel(str(model), f"{ARGS}.model", options)
            self.mean, self.std = self.scalar.normalisation(normalize)

    def __call__(self, dialogues: list[Dialogue]) -> list[float]:
        """The score of each dialogue; NaN where the output of a model is NaN or inf."""
        if self.members:
            scores = self._combine_members(dialogues)
        else:
            scores = [(output - self.mean) / self.std for output in self.outputs(dialogues)]
        if self.clip is not None:
            scores = [min(max(score, -self.clip), self.clip) for score in scores]  # NaN stays NaN
        return [s - self.length_price * len(d.response.split()) for s, d in zip(scores, dialogues, strict=True)]

    def outputs(self, dialogues: list[Dialogue]) -> list[float]:
        """The model's own output for each dialogue, before `normalize` and everything after it; not for `members`."""
        assert self.scalar is not None
        return [output if math.isfinite(output) else math.nan for output in self.scalar.outputs(dialogues)]

    def _combine_members(self, dialogues: list[Dialogue]) -> list[float]:
        rows = list(zip(*[member(dialogues) for member in self.members], strict=True))
        means = [math.fsum(row) / len(row) for row in rows]
        variances = [math.fsum((x - mean) ** 2 for x in row) / len(row) for row, mean in zip(rows, means, strict=True)]
        self._deviation = math.fsum(map(math.sqrt, variances)) / max(len(rows), 1)
        if self.combine == "mean":
            return means
        if self.combine == "min":
            return [math.nan if any(map(math.isnan, row)) else min(row) for row in rows]
        return [mean - self.uncertainty_coef * variance for mean, variance in zip(means, variances, strict=True)]

    def metrics(self) -> dict[str, float]:
        """For `members`, the mean over the dialogues of their population deviation."""
        return super().metrics() | ({DEVIATION: self._deviation} if self.members else {})

    def children(self) -> list[BaseReward]:
        return list(self.members)

    def in_float32(self) -> Self:
        if self.scalar is not None:
            self.scalar.options = replace(self.scalar.options, precision="fp32")
        return super().in_float32()

    def move_to(self, device: str) -> Self:
        """Move the models; on a GPU that runs them in bf16, their linear layers keep the 16 bits that their checkpoints have."""
        from rlhf_dialog.models.precision import narrow

        if self.scalar is not None and device.startswith("cuda") and self.scalar.uses_bf16("cuda"):
            narrow(self.scalar.model)
        return super().move_to(device)

    def frozen_models(self) -> dict[str, Any]:
        return {} if self.scalar is None else {REWARD_MODEL: self.scalar.model}

    @classmethod
    def model_paths(cls, args: dict[str, Any]) -> dict[str, str]:
        members = args.get("members")
        paths = members if isinstance(members, list) and members else [args["model"]] if args.get("model") else []
        found: dict[str, str] = {}
        for path in paths:
            found[free_name(REWARD_MODEL, found)] = str(path)
        return found


def _member(index: int, path: Any, normalize: bool | None, options: "ScalarOptions") -> RewardModel:
    try:
        return RewardModel(str(path), normalize, **asdict(options))
    except UserError as error:
        raise error.with_location(f"{ARGS}.members[{index}]", f"{ARGS}.model") from error
