"""What a checkpoint of an earlier version was computed with: the formulas that changed since, and the keys that it did not have.

Bit for bit is promised within one revision. A change of a formula that trains or selects a model adds a revision with its line
here; a new key that changes numbers adds the meaning that it had before it existed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rlhf_dialog.config.schema import Config
from rlhf_dialog.training import ppo
from rlhf_dialog.training.advantages import ADVANTAGES


@dataclass(frozen=True)
class Change:
    """A formula that is another one since `revision`, for the runs that use it."""

    revision: int
    text: str
    used: Callable[[Config], bool]


def always(config: Config) -> bool:
    return True


CHANGES = (
    Change(2, "the losses: a token weighs the same in every minibatch, however long its response is", always),
    Change(
        2,
        "the advantages: each token carries the KL penalties from itself on, not those of its whole response",
        lambda config: config.estimator.needs_groups,
    ),
    Change(
        2,
        "grpo: only the scores are divided by the deviation of their group, not the KL penalties",
        lambda config: ADVANTAGES[config.estimator.name] is ppo.grpo_advantages,
    ),
    Change(
        2,
        "the value normaliser: computed in double precision",
        lambda config: config.use_valuenorm and config.estimator.needs_critic,
    ),
    Change(
        2,
        "eval/score: less the truncation penalty, as in training; the best iteration so far was chosen without it",
        lambda config: bool(config.eval_interval and config.truncation_penalty),
    ),
    Change(
        2,
        "LengthMatch: the value of the nearest reference, not of the first",
        lambda config: "LengthMatch" in str(config.reward_class.model_dump()),
    ),
    Change(
        2,
        "the turn_separator: one that the tokenizer merges with the space before it ends a response; one inside a turn is "
        "replaced by a space (other separators: no change)",
        lambda config: config.turn_separator != "chat_template",
    ),
    Change(
        2,
        "the chat template: special tokens inside a turn are replaced by a space (turns without them: no change)",
        lambda config: config.turn_separator == "chat_template",
    ),
)
REVISION = max(change.revision for change in CHANGES)
OLD_MEANINGS: dict[str, Any] = {
    "kl_hold": False,
    "kl_coef_max": None,
    "kl_in": "reward",
    "kl_estimator": "k1",
    "whiten_rewards": False,
    "value_clip_param": None,
}
PRECISION_OF_TODAY: dict[str, Any] = {"precision": "auto", "use_amp": None, "amp_dtype": "auto"}


def changes_since(revision: int, config: Config) -> list[str]:
    """The formulas of the run that changed after `revision`, in words."""
    return [change.text for change in CHANGES if change.revision > revision and change.used(config)]


def old_meanings(config: Config, settings: Any) -> dict[str, Any]:
    """The values of a checkpoint's run for the keys of OLD_MEANINGS that the user has not set, where they differ from now.

    `settings` are those of the checkpoint; the keys that it does not know meant there what OLD_MEANINGS says.
    """
    then = OLD_MEANINGS | (settings if isinstance(settings, dict) else {})
    unset = [key for key in OLD_MEANINGS if key not in config.model_fields_set]
    return {key: then[key] for key in unset if getattr(config, key) != then[key]}


def old_precision(config: Config, settings: Any) -> dict[str, Any]:
    """The keys of the precision that a checkpoint's run has computed in, if the configuration asks for none: a run keeps it.

    Before `precision` existed, a run without `use_amp` computed in strict float32 everywhere, as with `use_amp: false`.
    """
    if config.use_amp is not None or config.precision != "auto":
        return {}
    then = settings if isinstance(settings, dict) else {}
    if "precision" not in then:
        then = {"use_amp": False} | then
    return {key: then[key] for key in PRECISION_OF_TODAY if key in then and then[key] != getattr(config, key)}
