"""The judges of scripts/evaluate.py: act classifiers, relevance models, and rewards and metrics of your own."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from rlhf_dialog.commands.options import Options, option
from rlhf_dialog.config.registry import MetricFactory, RewardFactory
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.own_metrics import OwnMetric
from rlhf_dialog.rewards.base import BaseReward, free_name
from rlhf_dialog.rewards.composite import build_reward
from rlhf_dialog.rewards.intent import KEY as INTENT_KEY
from rlhf_dialog.rewards.intent import Intent

if TYPE_CHECKING:
    from rlhf_dialog.evaluation.measure import Judges


class JudgeOptions(Options):
    """The options that say who judges."""

    judge: tuple[str, ...] = option(
        "act classifier that the reward never saw (docs: reward_models/README.md): judge_accuracy and judge_macro_f1 "
        "beside intent_accuracy and intent_macro_f1; or a registered reward, `Name` or `{id: Name, args: {..}}`, whose mean is "
        "judge_<its name>. May be given several times",
        form="repeated",
    )
    relevance_model: tuple[str, ...] = option(
        "relevance model that the reward never saw (docs: reward_models/README.md): how often a reply's own prompt is the "
        "first, and among the first 10, of 100: relevance_r1, relevance_r10. May be given several times",
        form="repeated",
    )
    register: str | None = option(
        "Python file that registers rewards, metrics and networks of your own, run first; for example train_ppo.py. Metrics "
        "(MetricFactory) are measured of every system"
    )
    best_of: int | None = option(
        "also the best of N replies to each prompt by the score of the reward, for each agent: what a reward gains without "
        "any training",
        metavar="N",
    )
    intent_model: str | None = option(
        "act classifier; default: that of the run's reward, if it has one", rivals="classifier"
    )
    no_intent: bool = option("leave out the intent metrics, and a score that needs a classifier", rivals="classifier")
    device: str = option("cpu or cuda (default: cpu)", "cpu")


def set_judges(judges: "Judges", options: JudgeOptions) -> None:
    """Add what --judge, --relevance_model and --register name. Raises UserError when one cannot be loaded or used."""
    from rlhf_dialog.models.relevance import load_relevance

    if path := judge_folder(options):
        judges.judge = _act_classifier(path, options.device)
    for name, path in relevance_folders(options).items():
        judges.relevance[name] = load_relevance(path, "--relevance_model").to(options.device)
    judges.user_judges |= reward_judges(options.judge, options.device)
    for name, metric in MetricFactory.classes.items():
        judges.user_judges[free_name(name, judges.user_judges)] = OwnMetric(name, metric)


def all_judges(words: Sequence[str], device: str) -> dict[str, BaseReward]:
    """The judges that --judge names, by the names of their numbers; those of act classifiers are `judge_acts`.

    Raises UserError when one cannot be loaded.
    """
    found: dict[str, BaseReward] = {}
    for path in filter(lambda word: _reward_node(word) is None, words):
        found[free_name("judge_acts", found)] = _act_classifier(path, device)
    return found | reward_judges(words, device)


def reward_judges(words: Sequence[str], device: str) -> dict[str, BaseReward]:
    """The registered rewards among the values of --judge, as `judge_<name>`. Raises UserError when one cannot be built."""
    judges: dict[str, BaseReward] = {}
    for word in words:
        if (node := _reward_node(word)) is not None:
            reward = _reward(word, node).move_to(device)
            judges[free_name(f"judge_{reward.name}", judges)] = reward
    return judges


def judge_folder(options: JudgeOptions) -> str | None:
    """The act classifier among the values of --judge. Raises UserError for two of them."""
    folders = [word for word in options.judge if _reward_node(word) is None]
    if len(folders) > 1:
        raise UserError(
            f"--judge: {' and '.join(folders)} are two act classifiers; name one, and registered rewards beside it"
        )
    return folders[0] if folders else None


def relevance_folders(options: JudgeOptions) -> dict[str, str]:
    """The relevance models by the names of their metrics: `relevance`, `relevance_2` .."""
    found: dict[str, str] = {}
    for path in options.relevance_model:
        found[free_name("relevance", found)] = path
    return found


def _reward_node(word: str) -> dict[str, Any] | None:
    """`{id, args}` of a reward; None for anything else, which is a folder or a Hub name."""
    if word in RewardFactory.classes and not Path(word).exists():
        return {"id": word}
    if not word.startswith("{"):
        return None
    try:
        node = yaml.safe_load(word)
    except yaml.YAMLError as error:
        raise UserError(f"--judge: {word!r:.100} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(node, dict) or not isinstance(node.get("id"), str) or not set(node) <= {"id", "args"}:
        raise UserError(f"--judge: {word!r:.100} must be {{id: Name, args: {{..}}}}")
    return node


def _reward(word: str, node: dict[str, Any]) -> BaseReward:
    args = node.get("args") or {}
    if not isinstance(args, dict):
        raise UserError(f"--judge: the args of {word!r:.100} must be a mapping")
    try:
        return build_reward(node["id"], args)
    except UserError as error:
        raise error.with_location("args", "reward_class.args").with_location("--judge") from error


def _act_classifier(path: str, device: str) -> Intent:
    try:
        return Intent(path, precision="fp32").move_to(device)
    except UserError as error:
        raise error.with_location("--judge", INTENT_KEY) from error
