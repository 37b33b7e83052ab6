"""Who answers in a chat: a bot, which stores what is said and rated, or an agent."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from pathlib import Path

from rlhf_dialog.commands.chat import ChatOptions
from rlhf_dialog.commands.terminal_state import terminal_person
from rlhf_dialog.data import hub
from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.page.batched_generation import Answering
from rlhf_dialog.feedback.page.chat_session import ChatSession
from rlhf_dialog.feedback.page.loaded_versions import load_agent
from rlhf_dialog.feedback.store.bot import Bot, is_bot
from rlhf_dialog.models.chat_agent import ChatAgent
from rlhf_dialog.models.generation import at_temperature


def bots_in(places: Sequence[Path]) -> dict[Path, Path]:
    """The bots directly below these folders, each with its file that is as new as the bot is."""
    return {path.parent: path for place in places for path in place.glob("*/champion") if is_bot(path.parent)}


class Partner:
    """A bot's versions, or the agent of this name; to be used with `with`. Raises UserError when there is none."""

    def __init__(self, name: str, options: ChatOptions):
        self.name, self._open = name, ExitStack()
        adjust, trust_remote_code = partial(_adjust, options), options.trust_remote_code
        self.bot = Bot(name) if is_bot(Path(name).expanduser()) else None
        if self.bot is None:
            folder = _find_folder(name, trust_remote_code)
            agent = load_agent(
                folder, options.tokenizer, options.device, trust_remote_code, adjust, options.trust_config
            )
            self.answering = Answering(agent, seed=options.seed or 0)
        elif options.tokenizer or trust_remote_code:
            raise UserError(
                "--agent: a bot has its own tokenizer and runs no code; leave --tokenizer and --trust_remote_code out"
            )
        else:
            self.answering = Answering(self.bot, device=options.device, seed=options.seed, adjust=adjust)

    def __enter__(self) -> "Partner":
        self._open.enter_context(self.answering)
        self.store = None if self.bot is None else self.bot.store()
        if self.store is not None:
            self._open.callback(self.store.close)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def introduction(self) -> list[str]:
        """Who answers, what the agent says of itself, and what becomes of what is said."""
        said = self.answering.introduction()
        introduction = [] if said is None else [said]
        if self.bot is None:
            return [f"Agent: {self.name}", *introduction]
        return [
            f"Agent: {self.name}, version {self.answering.version()}",
            *introduction,
            f"What you say and how you rate it is stored in {self.bot.store_path} to train this bot; /forget me removes it.",
        ]

    @cached_property
    def person(self) -> str:
        """Who uses this terminal; nobody where nothing is stored."""
        return "" if self.store is None else terminal_person()

    def begin(self) -> ChatSession:
        """A new dialogue."""
        return ChatSession(self.store, self.answering, self.person, "terminal")


def _adjust(options: ChatOptions, agent: ChatAgent) -> None:
    agent.sampling = at_temperature(options.temperature, agent.sampling)
    agent.set_precision(options)


def _find_folder(name: str, trust_remote_code: bool) -> str:
    folder = Path(name).expanduser()
    if (folder / "agent").is_dir() and not (folder / "config.json").exists():  # a training run
        name = str(folder / "agent")
    return hub.model_folder(name, "--agent", trust_remote_code)
