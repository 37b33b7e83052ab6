"""Which versions of a bot are in memory, and which of them a new dialogue gets."""

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path

from rlhf_dialog.data.chat_models import chat_settings
from rlhf_dialog.errors import UserError
from rlhf_dialog.models.chat_agent import AgentSettings, ChatAgent, chat_sampling
from rlhf_dialog.models.network import AGENT_FILE

logger = logging.getLogger(__name__)


def load_agent(
    folder: str | Path,
    tokenizer: str | None = None,
    device: str = "auto",
    trust_remote_code: bool = False,
    adjust: Callable[[ChatAgent], None] | None = None,
    trust_config: bool = False,
) -> ChatAgent:
    """An agent from a local folder; a plain chat model speaks by its own template. Raises UserError as `ChatAgent.load`."""
    plain = {} if (Path(folder).expanduser() / AGENT_FILE).is_file() else chat_settings(folder, tokenizer)
    settings = AgentSettings(**plain) if plain else None
    agent = ChatAgent.load(folder, tokenizer, device, settings, trust_remote_code, trust_config)
    agent.sampling = chat_sampling(agent.settings)
    agent.stop.ends_loops = True
    if adjust:
        adjust(agent)
    return agent


class LoadedVersions:
    """The versions in memory: those that dialogues hold, and the newest; at most `max_versions`. Threads may share it.

    `champion` names the version that a new dialogue gets, and `load` loads one; both may raise UserError.
    """

    def __init__(self, champion: Callable[[], str], load: Callable[[str], ChatAgent], max_versions: int = 3):
        self._champion, self._load, self.max_versions = champion, load, max_versions
        self._agents: dict[str, ChatAgent] = {}
        self._holders: Counter[str] = Counter()
        self._newest: str | None = None
        self._ended: deque[str] = deque()  # versions of ended dialogues that are not counted yet
        self._changing = threading.Lock()

    @property
    def versions(self) -> list[str]:
        """The versions in memory."""
        return sorted(self._agents)

    def hold(self) -> str:
        """The version of a new dialogue: the champion, or the newest in memory where that is full or the champion does not load.

        Raises UserError when the champion does not load, and no version is in memory.
        """
        with self._changing:
            try:
                self._newest = self._load_champion()
            except UserError as error:
                if self._newest is None:
                    raise
                logger.warning("%s; version %s answers in its place", error, self._newest)
            self._holders[self._newest] += 1
            self._drop()
            return self._newest

    def release(self, version: str) -> None:
        """A dialogue with this version has ended. It never waits: Python may call it anywhere, when a dialogue is garbage."""
        self._ended.append(version)
        if self._changing.acquire(blocking=False):  # else the next one drops
            try:
                self._drop()
            finally:
                self._changing.release()

    def agent(self, version: str) -> ChatAgent:
        """A version that a dialogue holds. Raises UserError when the dialogue has ended and the version left."""
        if (agent := self._agents.get(version)) is None:
            raise UserError(f"version {version} is not in memory any more; begin a new dialogue")
        return agent

    def _load_champion(self) -> str:
        """The champion, or the newest version in memory where others fill it."""
        version = self._champion()
        if version not in self._agents:
            self._drop()
            if len(self._agents) >= self.max_versions and self._newest is not None:
                return self._newest
            self._agents[version] = self._load(version)
        return version

    def _drop(self) -> None:
        """Let versions leave that no dialogue holds, but the newest."""
        while self._ended:
            self._holders[self._ended.popleft()] -= 1
        left = {name for name in self._agents if self._holders[name] > 0 or name == self._newest}
        for name in set(self._agents) - left:
            del self._agents[name]
