"""Several people at once: their requests are batched into one generation, and each gets its own tokens as they come.

B requests of a batch, T response tokens.
"""

import queue
import random
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.sessions.loaded_versions import LoadedVersions, load_agent
from rlhf_dialog.feedback.store.bot import Bot
from rlhf_dialog.models.chat_agent import ChatAgent, GrowingReply, stream
from rlhf_dialog.models.generation import random_numbers

CPU = torch.device("cpu")
ONE_AGENT = "agent"  # the only version where there is no bot


@dataclass(frozen=True)
class GeneratedAnswer(GrowingReply):
    """An answer so far, or a finished one."""

    sampling: dict[str, Any] = field(default_factory=dict)  # the fields of Sampling, and the seed of its random numbers


class AnsweringClosed(UserError):
    """The program is ending, so nobody answers any more."""

    def __init__(self) -> None:
        super().__init__("the program is ending; try again in a minute")


@dataclass(eq=False)
class _Request:
    turns: list[str]
    version: str
    seed: int
    answers: "queue.SimpleQueue[GeneratedAnswer | BaseException]" = field(default_factory=queue.SimpleQueue)
    left: bool = False  # nobody waits for it any more


class Answering:
    """What answers in the process of a terminal or a server; threads share it.

    One thread generates. Requests of the same version that wait for it are one batch; what comes meanwhile waits for the
    next one. Each request has its own random numbers, so its reply does not depend on who else is in the batch. Close it, or
    use `with`.
    """

    def __init__(
        self,
        source: Bot | ChatAgent,
        *,
        device: str = "auto",
        seed: int | None = None,
        adjust: Callable[[ChatAgent], None] | None = None,
        max_batch: int = 16,
    ):
        """`source`: a bot, whose champion is read between dialogues, or a single agent.

        `seed` is that of the answers' seeds (None: a new one each time); `adjust` changes versions of a bot.
        """
        self.bot = source if isinstance(source, Bot) else None

        def load(version: str) -> ChatAgent:
            if isinstance(source, ChatAgent):
                return source
            try:
                return load_agent(source.agent_folder(version), device=device, adjust=adjust)
            except UserError as error:
                remedy = "go back to another one with `feedback rollback`"
                raise UserError(f"{source.folder}: version {version} does not load ({error}); {remedy}") from error

        champion = source.champion if isinstance(source, Bot) else lambda: ONE_AGENT
        self._served = LoadedVersions(champion, load)
        self._seeds, self.max_batch = random.Random(seed), max_batch
        self._waiting: deque[_Request] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._worker: threading.Thread | None = None

    def __enter__(self) -> "Answering":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self) -> str:
        """The version of a new dialogue, which stays in memory until `end(version)`. Raises UserError when none loads."""
        return self._served.hold()

    def end(self, version: str) -> None:
        """A dialogue that began with this version has ended."""
        self._served.release(version)

    def introduction(self) -> tuple[str, str | None]:
        """The version that a new dialogue would get now, and what its agent says of itself, if anything."""
        version = self.begin()
        introduction = self._served.agent(version).settings.introduction
        self.end(version)
        return version, introduction

    def spoken(self, text: str, version: str) -> str:
        """`text` as the version's model sees it: a space replaces what would end a turn."""
        return self._served.agent(version).encoder.spoken(text).strip()

    def stream(
        self, turns: Sequence[str], version: str, seed: int | None = None
    ) -> Generator[GeneratedAnswer, None, None]:
        """Answer the turns, oldest first, with a version that the dialogue holds: the growing answer, at last the ended one.

        Closing the iterator gives the request up. Raises AnsweringClosed, and what the generation raises.
        """
        with self._changed:
            if self._closed:
                raise AnsweringClosed
            seed = self._seeds.getrandbits(63) if seed is None else seed
            request = _Request([turn.strip() for turn in turns], version, seed)
            if self._worker is None:
                self._worker = threading.Thread(target=self._work, name="answering", daemon=True)
                self._worker.start()
            self._waiting.append(request)
            self._changed.notify_all()
        try:
            while True:
                answer = request.answers.get()
                if isinstance(answer, BaseException):
                    raise answer
                yield answer
                if answer.ended:
                    return
        finally:
            request.left = True

    def close(self) -> None:
        """End the thread after the token that it is at; requests that wait get AnsweringClosed."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._worker is not None:
            self._worker.join()
        while self._waiting:
            self._waiting.popleft().answers.put(AnsweringClosed())

    def _work(self) -> None:
        while batch := self._next_batch():
            try:
                self._generate(batch)
            except BaseException as error:
                for request in batch:
                    request.answers.put(error)

    def _next_batch(self) -> list[_Request]:
        """The requests that wait for the version of the first of them; none when the program ends."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return []
            version = self._waiting[0].version
            batch = [one for one in self._waiting if one.version == version][: self.max_batch]
            self._waiting = deque(one for one in self._waiting if one not in batch)
            return [one for one in batch if not one.left] or self._next_batch()

    def _generate(self, batch: list[_Request]) -> None:
        """Answer a batch; each request gets its answer after every token until it has ended."""
        agent = self._served.agent(batch[0].version)
        prompts = [request.turns[-agent.settings.context_size :] for request in batch]
        seeds = [torch.Generator().manual_seed(request.seed) for request in batch]
        numbers = torch.cat([random_numbers(1, agent.sampling, CPU, generator) for generator in seeds])
        going = dict(enumerate(batch))

        def show(replies: list[GrowingReply]) -> bool:
            for row, request in list(going.items()):
                reply, used = replies[row], {**agent.sampling.settings, "seed": request.seed}
                request.answers.put(GeneratedAnswer(**vars(reply), sampling=used))
                if reply.ended or request.left:
                    del going[row]
            return bool(going) and not self._closed

        stream(agent, prompts, show, numbers)
        for request in going.values():
            request.answers.put(AnsweringClosed())
