"""The judges of scripts/evaluate.py: act classifiers, relevance models, and rewards and metrics of your own."""

import argparse
from pathlib import Path
from typing import Any

import yaml

from rlhf_dialog.config.registry import MetricFactory, RewardFactory
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.measure import Judges
from rlhf_dialog.evaluation.own_metrics import OwnMetric
from rlhf_dialog.models.relevance_folder import load_relevance
from rlhf_dialog.rewards.base import BaseReward, free_name
from rlhf_dialog.rewards.composite import build_reward
from rlhf_dialog.rewards.intent import KEY as INTENT_KEY
from rlhf_dialog.rewards.intent import Intent


def add_judges(parser: argparse.ArgumentParser) -> None:
    """Add the options that say who judges."""
    parser.add_argument(
        "--judge",
        action="append",
        help="act classifier that the reward never saw (docs: reward_models/README.md): judge_accuracy and judge_macro_f1 "
        "beside intent_accuracy and intent_macro_f1; or a registered reward, `Name` or `{id: Name, args: {..}}`, whose mean is "
        "judge_<its name>. May be given several times",
    )
    parser.add_argument(
        "--relevance_model",
        action="append",
        help="relevance model that the reward never saw (docs: reward_models/README.md): how often a reply's own prompt is the "
        "first, and among the first 10, of 100: relevance_r1, relevance_r10. May be given several times",
    )
    parser.add_argument(
        "--register",
        help="Python file that registers rewards, metrics and networks of your own, run first; for example train_ppo.py. Metrics "
        "(MetricFactory) are measured of every system",
    )
    parser.add_argument(
        "--best_of",
        type=int,
        metavar="N",
        help="also the best of N replies to each prompt by the score of the reward, for each agent: what a reward gains without "
        "any training",
    )
    of_reward = parser.add_mutually_exclusive_group()
    of_reward.add_argument("--intent_model", help="act classifier; default: that of the run's reward, if it has one")
    of_reward.add_argument(
        "--no_intent",
        action="store_true",
        help="leave out the intent metrics, and a score that needs a classifier",
    )


def set_judges(judges: Judges, options: argparse.Namespace) -> None:
    """Add what --judge, --relevance_model and --register name. Raises UserError when one cannot be loaded or used."""
    if path := judge_folder(options):
        judges.judge = _act_classifier(path, options.device)
    for name, path in relevance_folders(options).items():
        judges.relevance[name] = load_relevance(path, "--relevance_model").to(options.device)
    for word in options.judge or []:
        if (node := _reward_node(word)) is not None:
            reward = _reward(word, node).to(options.device)
            judges.own[free_name(f"judge_{reward.name}", judges.own)] = reward
    for name, metric in MetricFactory.classes.items():
        judges.own[free_name(name, judges.own)] = OwnMetric(name, metric)


def judge_folder(options: argparse.Namespace) -> str | None:
    """The act classifier among the values of --judge. Raises UserError for two of them."""
    folders = [word for word in options.judge or [] if _reward_node(word) is None]
    if len(folders) > 1:
        raise UserError(
            f"--judge: {' and '.join(folders)} are two act classifiers; name one, and registered rewards beside it"
        )
    return folders[0] if folders else None


def relevance_folders(options: argparse.Namespace) -> dict[str, str]:
    """The relevance models by the names of their metrics: `relevance`, `relevance_2` .."""
    found: dict[str, str] = {}
    for path in options.relevance_model or []:
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
        raise UserError(f"--judge: {str(error).replace('reward_class.args', 'args')}") from error


def _act_classifier(path: str, device: str) -> Intent:
    try:
        return Intent(path, precision="fp32").to(device)
    except UserError as error:
        raise UserError(str(error).replace(INTENT_KEY, "--judge")) from error
