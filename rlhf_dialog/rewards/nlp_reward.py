"""NLPReward: the reward of the DailyDialog task, Intent and METEOR in a weighted sum."""

from typing import Any

from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards.base import ARGS, Part, is_finite, number
from rlhf_dialog.rewards.composite import CompositeReward
from rlhf_dialog.rewards.intent import Intent
from rlhf_dialog.rewards.meteor import Meteor


@RewardFactory.register("NLPReward")
class NLPReward(CompositeReward):
    """intent_coef * Intent + meteor_coef * Meteor; a part of coefficient 0 is left out and loads nothing.

    `ref_model`, `kl_coef`, `kl_target`, `kl_rate` and `kl_clip` among its YAML arguments are moved to the top level before it is
    built; `use_deepspeed`, `ref_ds_config` and `intent_ds_config` are read by the trainer (`deepspeed_config.frozen_settings`).
    Raises UserError for a coefficient that is not a finite number, when both are 0, and what Intent and Meteor raise.
    """

    name = "nlp"
    lifts_kl = True

    def __init__(  # noqa: PLR0913 - the keys of its YAML
        self,
        intent_model: str | None = None,
        intent_coef: float = 0.5,
        meteor_coef: float = 0.5,
        meteor_wordnet: str | bool = "auto",
        intent_input: str | None = None,
        allow_pickle_weights: bool = False,
        precision: str = "auto",
        use_deepspeed: bool = False,
        ref_ds_config: str = "default",
        intent_ds_config: str = "default",
        intent_score: str = "match",
        act_model: str | None = None,
    ):
        intent_coef, meteor_coef = number("intent_coef", intent_coef), number("meteor_coef", meteor_coef)
        if intent_coef == meteor_coef == 0:
            raise UserError(f"{ARGS}: intent_coef and meteor_coef are both 0, so there is nothing to reward; set one")
        if intent_coef and not intent_model:
            raise UserError(
                f"{ARGS}.intent_model is missing: give the folder or Hub name of an act classifier, or set "
                "`intent_coef: 0` to train without it"
            )
        if not isinstance(use_deepspeed, bool):
            raise UserError(f"{ARGS}.use_deepspeed: {use_deepspeed!r} must be true or false")
        parts = []
        if intent_coef:
            model = str(intent_model)
            intent = Intent(model, intent_input, None, allow_pickle_weights, precision, intent_score, act_model)
            parts.append(Part(intent_coef, intent))
        if meteor_coef:
            parts.append(Part(meteor_coef, Meteor(meteor_wordnet)))
        self._set_parts(parts)

    @classmethod
    def model_paths(cls, args: dict[str, Any]) -> dict[str, str]:
        """The classifier, unless its coefficient is 0."""
        coefficient = args.get("intent_coef", 0.5)
        used = not is_finite(coefficient) or float(coefficient) != 0
        return Intent.model_paths(args) if used else {}
