"""The options of scripts/evaluate.py that name agents and judges, and what loads them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_dialog.commands.command_line import TRUST_REMOTE_CODE
from rlhf_dialog.commands.options import PrecisionOption, option
from rlhf_dialog.config.registry import COLON, MetricFactory, RewardFactory
from rlhf_dialog.data.hub import model_folder
from rlhf_dialog.errors import UserError
from rlhf_dialog.found_files import agent_folder
from rlhf_dialog.rewards.base import BaseReward, check_alone, free_name
from rlhf_dialog.rewards.composite import build_reward
from rlhf_dialog.rewards.function_reward import FunctionReward
from rlhf_dialog.rewards.intent import KEY as INTENT_KEY
from rlhf_dialog.rewards.intent import Intent
from rlhf_dialog.yaml_files import parse_yaml

if TYPE_CHECKING:
    from rlhf_dialog.evaluation.measure import Judges
    from rlhf_dialog.models.chat_agent import AgentSettings, ChatAgent

OWN = ("metrics", "before", "after", "difference")  # names that an evaluation gives to its own rows


class AgentOptions(PrecisionOption):
    """The options that name agents and judges."""

    agent: str = option("folder of the agent (any causal LM folder is one) or of its run, or its name on the Hub")
    baseline: str | None = option(
        "a second agent, folder or name on the Hub, measured on the same prompts: the `before` of the comparison; the "
        "separator and the lengths are those of --agent unless its own folder says otherwise"
    )
    beside: tuple[str, ...] = option(
        "another agent as a row of its own: DIR, or NAME=DIR to name the row. May be given several times",
        form="repeated",
    )
    draws: int = option("replies that each agent samples for each prompt; the metrics are their means (default: 1)", 1)
    config: str | None = option(
        "YAML with data and reward, which you trust; default: config.yaml beside the agent, as data"
    )
    trust_config: bool = option(
        "let the config.yaml beside the agent do what --config may: ask a server or the Hub, read environment "
        "variables and pickled weights, use rewards of --register; and let the agent's folder be a link out of its run"
    )
    trust_remote_code: bool = option(f"{TRUST_REMOTE_CODE}; that of --baseline too")
    judge: tuple[str, ...] = option(
        "act classifier that the reward never saw (docs: reward_models/README.md): judge_accuracy and judge_macro_f1 "
        "beside intent_accuracy and intent_macro_f1; or another reward, `Name`, `FILE.py:FUNCTION` or `{id: Name, args: {..}}`, "
        "whose mean is judge_<its name>. May be given several times",
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


def set_judges(judges: "Judges", options: AgentOptions) -> None:
    """Add what --judge, --relevance_model and --register name. Raises UserError when one cannot be loaded or used."""
    from rlhf_dialog.models.relevance import load_relevance

    if path := judge_folder(options):
        judges.judge = _act_classifier(path, options.device)
    for name, path in relevance_folders(options).items():
        judges.relevance[name] = load_relevance(path, "--relevance_model").to(options.device)
    judges.user_judges |= reward_judges(options.judge, options.device)
    for name, metric in MetricFactory.classes.items():
        judges.user_judges[free_name(name, judges.user_judges)] = FunctionReward(metric)


def all_judges(words: Sequence[str], device: str) -> dict[str, BaseReward]:
    """The judges that --judge names, by the names of their numbers; those of act classifiers are `judge_acts`."""
    found: dict[str, BaseReward] = {}
    for path in filter(lambda word: _reward_node(word) is None, words):
        found[free_name("judge_acts", found)] = _act_classifier(path, device)
    return found | reward_judges(words, device)


def reward_judges(words: Sequence[str], device: str) -> dict[str, BaseReward]:
    """The registered rewards among the values of --judge, as `judge_<name>`. Raises UserError when one cannot be built."""
    judges: dict[str, BaseReward] = {}
    for word in words:
        if (node := _reward_node(word)) is not None:
            try:
                reward = build_reward(node["id"], node.get("args") or {}).in_float32().move_to(device)
            except UserError as error:
                raise error.with_location("args", "reward_class.args").with_location("--judge") from error
            check_alone(reward, "--judge")
            judges[free_name(f"judge_{reward.name}", judges)] = reward
    return judges


def judge_folder(options: AgentOptions) -> str | None:
    """The act classifier among the values of --judge. Raises UserError for two of them."""
    folders = [word for word in options.judge if _reward_node(word) is None]
    if len(folders) > 1:
        raise UserError(
            f"--judge: {' and '.join(folders)} are two act classifiers; name one, and registered rewards beside it"
        )
    return folders[0] if folders else None


def relevance_folders(options: AgentOptions) -> dict[str, str]:
    """The relevance models by the names of their metrics: `relevance`, `relevance_2` .."""
    found: dict[str, str] = {}
    for path in options.relevance_model:
        found[free_name("relevance", found)] = path
    return found


def _reward_node(word: str) -> dict[str, Any] | None:
    """`{id, args}` of a reward; None for anything else, which is a folder or a Hub name."""
    if (word in RewardFactory.classes and not Path(word).exists()) or (COLON in word and not word.startswith("{")):
        return {"id": word}
    if not word.startswith("{"):
        return None
    try:
        node = parse_yaml(word)
    except ValueError as error:
        raise UserError(f"--judge: {word!r:.100} is not YAML: {error}") from error
    is_reward = isinstance(node, dict) and isinstance(node.get("id"), str) and set(node) <= {"id", "args"}
    if not is_reward or not isinstance(node.get("args") or {}, dict):
        raise UserError(f"--judge: {word!r:.100} must be {{id: Name, args: {{..}}}}")
    return node


def _act_classifier(path: str, device: str) -> Intent:
    try:
        return Intent(path, precision="fp32").move_to(device)
    except UserError as error:
        raise error.with_location("--judge", INTENT_KEY) from error


def load_baseline(options: AgentOptions, agent: "ChatAgent", name: str, key: str = "--baseline") -> "ChatAgent":
    """Another agent with the first agent's precision and length of responses; `key` named it."""
    from rlhf_dialog.models.chat_agent import read_settings

    folder = model_folder(agent_folder(name, options.trust_config), key, options.trust_remote_code)
    own = read_settings(Path(folder), agent.settings)
    settings = own.model_copy(update=agent.settings.model_dump(include={"max_new_tokens", "precision"}))
    return load_agent(options, folder, settings)


def load_agent(options: AgentOptions, folder: str, settings: "AgentSettings | None" = None) -> "ChatAgent":
    """The agent of a folder, with device, precision and permission of the options."""
    from rlhf_dialog.models.chat_agent import ChatAgent

    trusted = options.trust_config or options.config is not None
    agent = ChatAgent.load(folder, None, options.device, settings, options.trust_remote_code, trusted)
    agent.set_precision(options)
    return agent


def folders_beside(options: AgentOptions) -> dict[str, str]:
    """The folder of each agent of --beside, by the name of its row: by default its own, or that of the run around `agent`."""
    found = {}
    for text in options.beside:
        path = Path(text).absolute()
        name, folder = (path.parent if path.name == "agent" else path).name, text
        if "=" in text:
            name, folder = text.split("=", 1)
        found[name] = folder
    return found


def check_beside(options: AgentOptions) -> None:
    """Raises UserError for two rows of one name."""
    folders = folders_beside(options)
    if len(folders) < len(options.beside):
        raise UserError(f"--beside: two of {', '.join(options.beside)} have the same name; give each its own, NAME=DIR")
    if wrong := [name for name in folders if name in OWN or not name]:
        raise UserError(f"--beside: '{wrong[0]}' is the name of another row; give another one, NAME=DIR")
