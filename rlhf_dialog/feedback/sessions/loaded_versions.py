"""Which versions of a bot are in memory, and which of them a new dialogue gets."""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection
from pathlib import Path

from rlhf_dialog.data.chat_models import chat_settings
from rlhf_dialog.errors import UserError
from rlhf_dialog.models.chat_agent import AgentSettings, ChatAgent, chat_sampling
from rlhf_dialog.models.network import AGENT_FILE

logger = logging.getLogger(__name__)
REST = 600.0  # seconds that a version stays in memory, if there is room, after a dialogue has named it


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
    agent = ChatAgent.load(folder, tokenizer, device, settings, trust_remote_code, trust_config, ends_loops=True)
    agent.sampling = chat_sampling(agent.settings)
    if adjust:
        adjust(agent)
    return agent


class LoadedVersions:
    """The versions in memory: those that dialogues hold, and the newest; at most `max_versions`. Threads may share it.

    `champion` names the version that a new dialogue gets, `load` loads one, and `usable` lists those that a dialogue may go on
    with; all may raise UserError.
    """

    def __init__(
        self,
        champion: Callable[[], str],
        load: Callable[[str], ChatAgent],
        usable: Callable[[], Collection[str]] = tuple,
        max_versions: int = 3,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._champion, self._load, self._usable, self.max_versions = champion, load, usable, max_versions
        self._clock = clock
        self._agents: dict[str, ChatAgent] = {}
        self._holders: Counter[str] = Counter()
        self._newest: str | None = None
        self._named: dict[str, float] = {}  # when a dialogue named a version last, the latest at the end
        self._ended: deque[str] = deque()  # versions of ended dialogues that are not counted yet
        self._changing = threading.Lock()

    @property
    def versions(self) -> list[str]:
        return sorted(self._agents)

    def hold(self, version: str | None = None) -> str:
        """The version of a new dialogue: the champion, or the newest in memory where that is full or the champion does not load.

        A dialogue that goes on names its `version`, and gets it where it is usable, loads, and there is room for it. Raises
        UserError when the champion does not load, and no version is in memory.
        """
        with self._changing:
            held = None if version is None else self._load_named(version)
            if held is None:
                try:
                    held = self._newest = self._load_champion()
                except UserError as error:
                    if self._newest is None:
                        raise
                    held = self._newest
                    logger.warning("%s; version %s answers in its place", error, held)
            self._holders[held] += 1
            self._drop()
            return held

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
            self._drop(room=1)
            if len(self._agents) >= self.max_versions and self._newest is not None:
                return self._newest
            self._agents[version] = self._load(version)
        return version

    def _load_named(self, version: str) -> str | None:
        """The version, or None where a dialogue cannot go on with it."""
        try:
            if version not in self._usable():
                return None
            if version not in self._agents:
                self._drop(room=1)
                if len(self._agents) >= self.max_versions:
                    return None
                self._agents[version] = self._load(version)
        except UserError as error:
            logger.warning("%s; another version answers in its place", error)
            return None
        self._named.pop(version, None)
        self._named[version] = self._clock()
        return version

    def _drop(self, room: int = 0) -> None:
        """Let versions leave that no dialogue holds, but the newest, and, if there is still `room`, those that rest."""
        while self._ended:
            self._holders[self._ended.popleft()] -= 1
        left = {name for name in self._agents if self._holders[name] > 0 or name == self._newest}
        now = self._clock()
        self._named = {name: then for name, then in self._named.items() if now - then < REST}
        for name in reversed(self._named):
            if name in self._agents and len(left) < self.max_versions - room:
                left.add(name)
        for name in set(self._agents) - left:
            del self._agents[name]
