"""The agents of an evaluation: which ones, with what permission, how often each answers."""

from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_dialog.commands.command_line import TRUST_REMOTE_CODE
from rlhf_dialog.commands.evaluate_judges import JudgeOptions
from rlhf_dialog.commands.options import option
from rlhf_dialog.data.hub import model_folder
from rlhf_dialog.errors import UserError

if TYPE_CHECKING:
    from rlhf_dialog.models.chat_agent import AgentSettings, ChatAgent

OWN = ("metrics", "before", "after", "difference")  # names that an evaluation gives to its own rows


class AgentOptions(JudgeOptions):
    agent: str = option("folder of the agent (any causal LM folder is one), or its name on the Hub")
    baseline: str | None = option(
        "a second agent, folder or name on the Hub, measured on the same prompts: the `before` of the comparison; the "
        "separator and the lengths are those of --agent unless its own folder says otherwise"
    )
    beside: tuple[str, ...] = option(
        "one more agent as a row of its own, NAME=DIR, or DIR, whose name it then has: another seed, what was trained "
        "otherwise. May be given several times",
        form="repeated",
    )
    draws: int = option("samples of each agent to each prompt, of which the mean counts (default: 1)", 1)
    config: str | None = option(
        "YAML with data and reward, which you trust; default: config.yaml beside the agent, as data"
    )
    trust_config: bool = option(
        "let the config.yaml beside the agent do what --config may: ask a server or the Hub, read environment "
        "variables and pickled weights, use rewards of --register"
    )
    trust_remote_code: bool = option(f"{TRUST_REMOTE_CODE}; that of --baseline too")


def load_baseline(
    options: AgentOptions, agent: "ChatAgent", name: str | None = None, key: str = "--baseline"
) -> "ChatAgent":
    """Another agent, by default that of --baseline, with room for responses as long as the first agent's."""
    from rlhf_dialog.models.chat_agent import read_settings

    folder = model_folder(name or str(options.baseline), key, options.trust_remote_code)
    own = read_settings(Path(folder), agent.settings)
    settings = own.model_copy(update={"max_new_tokens": agent.settings.max_new_tokens})
    return load_agent(options, folder, settings)


def load_agent(options: AgentOptions, folder: str, settings: "AgentSettings | None" = None) -> "ChatAgent":
    """The agent of a folder, on the device and with the permission of the options."""
    from rlhf_dialog.models.chat_agent import ChatAgent

    trusted = options.trust_config or options.config is not None
    return ChatAgent.load(folder, None, options.device, settings, options.trust_remote_code, trusted)


def folders_beside(options: AgentOptions) -> dict[str, str]:
    """The folder of each agent of --beside, by the name of its row."""
    pairs = [text.split("=", 1) if "=" in text else (_row_name(text), text) for text in options.beside]
    return {name: folder for name, folder in pairs}


def _row_name(folder: str) -> str:
    """That of the folder, or of the run that an `agent` lies in."""
    path = Path(folder).absolute()
    return path.parent.name if path.name == "agent" else path.name


def check_beside(options: AgentOptions) -> None:
    """Raises UserError for two rows of one name."""
    folders = folders_beside(options)
    if len(folders) < len(options.beside):
        raise UserError(f"--beside: two of {', '.join(options.beside)} have the same name; give each its own, NAME=DIR")
    if wrong := [name for name in folders if name in OWN or not name]:
        raise UserError(f"--beside: '{wrong[0]}' is the name of another row; give another one, NAME=DIR")


def load_beside(options: AgentOptions, agent: "ChatAgent") -> "dict[str, ChatAgent]":
    """The agents of --beside by name, with room for responses as long as the first agent's."""
    return {name: load_baseline(options, agent, folder, "--beside") for name, folder in folders_beside(options).items()}
