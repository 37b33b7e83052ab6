"""RewardModel: the score that a model learned from preferences, or several such models together."""

import math
from typing import TYPE_CHECKING, Any, Self

from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards.base import DEVIATION, BaseReward, free_name
from rlhf_dialog.rewards.classifier import check_precision
from rlhf_dialog.rewards.composite import is_finite

if TYPE_CHECKING:
    from rlhf_dialog.rewards.scalar_model import ScalarModel

ARGS = "reward_class.args"
REWARD_MODEL = "reward model"  # its name among the frozen models of a reward
COMBINE = ("mean", "min", "uncertainty")


@RewardFactory.register("RewardModel")
class RewardModel(BaseReward):
    """The score of a sequence classifier with one label, which reads the dialogue as text, with its own tokenizer.

    `model`: a folder or Hub name, in safetensors, that `train_preference_model.py`, TRL's RewardTrainer or OpenRLHF wrote; or
    `members`: a list of them. The score is (output - mean) / std with the `mean` and `std` of the folder's config.json
    (`normalize` false: the output; true: a folder without them is refused; by default they are used where they are), between
    -`clip` and `clip`, less `length_price` for each word of the response. `combine`: the `mean` of the members, their `min`,
    or with `uncertainty` their mean less `uncertainty_coef` times their variance; the mean deviation of the members is
    logged as `reward/<name>_std`.

    `input_form` and `turn_separator` say how the dialogue is written, where the folder does not say it: see `reward_inputs`;
    `max_length` its tokens. `batch_size`: texts at a time. `precision`: `fp32`, `bf16`, or `auto` (bf16 on a GPU that has it).
    Raises UserError for a model that cannot be found, loaded or used.
    """

    name = "reward_model"
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
        _check_numbers(clip, length_price, uncertainty_coef, {"batch_size": batch_size, "max_length": max_length})
        _check_choices(model, members, combine, normalize)
        for key, value in {"input_form": input_form, "turn_separator": turn_separator}.items():
            if not isinstance(value, str | None):
                raise UserError(f"{ARGS}.{key}: {value!r:.100} must be text, in quotes, or null")
        self.clip = None if clip is None else float(clip)
        self.length_price, self.uncertainty_coef = float(length_price), float(uncertainty_coef)
        self.combine, self.scalar, self._deviation = combine, None, 0.0
        self.members: list[RewardModel] = []
        options: dict[str, Any] = {"batch_size": batch_size, "precision": check_precision(precision)}
        options |= {"input_form": input_form, "turn_separator": turn_separator, "max_length": max_length}
        if members:
            self.members = [_member(i, path, options | {"normalize": normalize}) for i, path in enumerate(members)]
        else:
            from rlhf_dialog.rewards.scalar_model import ScalarModel, ScalarOptions

            self.scalar = ScalarModel(str(model), f"{ARGS}.model", ScalarOptions(**options))
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
        scalar: ScalarModel = self.scalar  # type: ignore[assignment]
        with self.at_work():
            return [output if math.isfinite(output) else math.nan for output in scalar.outputs(dialogues)]

    def _combine_members(self, dialogues: list[Dialogue]) -> list[float]:
        columns = [member(dialogues) for member in self.members]
        rows = list(zip(*columns, strict=True))
        means = [math.fsum(row) / len(row) for row in rows]
        pairs = zip(rows, means, strict=True)
        variances = [math.fsum((score - mean) ** 2 for score in row) / len(row) for row, mean in pairs]
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
        """The members."""
        return list(self.members)

    def move_to(self, device: str) -> Self:
        """Move the models; on a GPU that runs them in bf16, their linear layers keep the 16 bits that their checkpoints have."""
        from rlhf_dialog.models.precision import narrow

        if self.scalar is not None and device.startswith("cuda") and self.scalar.uses_bf16("cuda"):
            narrow(self.scalar.model)
        return super().move_to(device)

    def frozen_models(self) -> dict[str, Any]:
        """The model; none for `members`, which hold their own."""
        return {} if self.scalar is None else {REWARD_MODEL: self.scalar.model}

    @classmethod
    def model_paths(cls, args: dict[str, Any]) -> dict[str, str]:
        """The folder or Hub name of the model, or of each member."""
        found: dict[str, str] = {}
        for path in _paths(args).values():
            found[free_name(REWARD_MODEL, found)] = path
        return found


def _paths(args: dict[str, Any]) -> dict[str, str]:
    """The models that the arguments name, by their keys."""
    members = args.get("members")
    if isinstance(members, list) and members:
        return {f"members[{i}]": str(path) for i, path in enumerate(members)}
    return {"model": str(args["model"])} if args.get("model") else {}


def _member(index: int, path: Any, options: dict[str, Any]) -> RewardModel:
    try:
        return RewardModel(str(path), **options)
    except UserError as error:
        raise error.with_location(f"{ARGS}.members[{index}]", f"{ARGS}.model") from error


def _check_choices(model: Any, members: Any, combine: Any, normalize: Any) -> None:
    if bool(model) == bool(members):
        raise UserError(f"{ARGS}: give either model, a folder or Hub name, or members, a list of them")
    if members and not isinstance(members, list):
        raise UserError(f"{ARGS}.members: {members!r:.100} must be a list of folders or Hub names")
    if combine not in COMBINE:
        raise UserError(f"{ARGS}.combine: {combine!r} is not one of {', '.join(COMBINE)}")
    if normalize not in (None, True, False):
        raise UserError(f"{ARGS}.normalize: {normalize!r} must be true, false or null")


def _check_numbers(clip: Any, price: Any, coef: Any, whole: dict[str, Any]) -> None:
    for key, value in {"length_price": price, "uncertainty_coef": coef}.items():
        if not is_finite(value):
            raise UserError(f"{ARGS}.{key}: {value!r} must be a finite number")
    if clip is not None and not (is_finite(clip) and float(clip) > 0):
        raise UserError(f"{ARGS}.clip: {clip!r} must be a number above 0, or null")
    for key, value in whole.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise UserError(f"{ARGS}.{key}: {value!r} must be a whole number, at least 1")
