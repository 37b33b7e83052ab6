"""Several people at once: their requests are batched into one generation, and each gets its own tokens as they come.

B requests of a batch, T response tokens.
"""

import queue
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from rlhf_dialog.data.chat_template import LEAST_ROOM
from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.sessions.loaded_versions import LoadedVersions, load_agent
from rlhf_dialog.feedback.store.bot import Bot
from rlhf_dialog.models.chat_agent import ChatAgent, GrowingReply, stream
from rlhf_dialog.models.generation import Sampling, at_temperature, random_numbers

CPU = torch.device("cpu")
ONE_AGENT = "agent"  # the only version where there is no bot
FEW = 4  # tokens
LEAST_TEMPERATURE = 1e-4  # below it logits overflow, so the most likely token is taken


@dataclass(frozen=True)
class ReplyOptions:
    """What one request asks of its answer; None is as in the chat.

    `system` is the dialogue's system message; the answer ends before the first of the texts `stop`.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_new_tokens: int | None = None
    stop: tuple[str, ...] = ()
    system: str | None = None

    def sampling(self, usual: Sampling) -> Sampling:
        """The sampling of a chat as changed by these; no answer becomes longer than in the chat."""
        temperature = self.temperature
        if temperature is not None and temperature < LEAST_TEMPERATURE:
            temperature = 0.0
        sampling = at_temperature(temperature, usual)
        top_p = sampling.top_p if self.top_p is None else self.top_p
        longest = sampling.max_new_tokens
        return replace(sampling, top_p=top_p, max_new_tokens=min(longest, self.max_new_tokens or longest))

    def cut(self, reply: GrowingReply) -> GrowingReply:
        """The reply up to the first of `stop`, ended there; of one that grows, without what may become the beginning of one."""
        places = [place for text in self.stop if (place := reply.text.find(text)) >= 0]
        if places:
            return replace(reply, text=reply.text[: min(places)].rstrip(), ended=True, truncated=False)
        if reply.ended or not self.stop:
            return reply
        sizes = [n for text in self.stop for n in range(1, len(text)) if reply.text.endswith(text[:n])]
        return replace(reply, text=reply.text[: len(reply.text) - max(sizes, default=0)].rstrip())


@dataclass(frozen=True)
class GeneratedAnswer(GrowingReply):
    """An answer so far, or a finished one."""

    sampling: dict[str, Any] = field(default_factory=dict)  # the fields of Sampling, and the seed of its random numbers


class AnsweringClosed(UserError):
    """The program is ending, so nobody answers any more."""

    def __init__(self) -> None:
        super().__init__("the program is ending; try again in a minute")


class NoRoom(UserError):
    """The system message of a request leaves no room for its dialogue."""


@dataclass(eq=False)
class _Request:
    turns: list[str]
    version: str
    seed: int
    options: ReplyOptions
    answers: "queue.SimpleQueue[GeneratedAnswer | BaseException]" = field(default_factory=queue.SimpleQueue)
    left: bool = False  # nobody waits for it any more

    def shares_batch(self, other: "_Request") -> bool:
        """Whether both can be rows of one batch; system messages and stop texts may differ."""
        mine, others = (replace(one.options, stop=(), system=None) for one in (self, other))
        return (self.version, mine) == (other.version, others)


class AnswerStream(Iterator[GeneratedAnswer]):
    """The growing answer of a request that waits or is generated, at last the ended one. Close it to give the request up."""

    def __init__(self, request: _Request):
        self._request, self._ended = request, False

    def __next__(self) -> GeneratedAnswer:
        if self._ended:
            raise StopIteration
        answer = self._request.answers.get()
        self._ended = isinstance(answer, BaseException) or answer.ended
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def close(self) -> None:
        self._request.left = self._ended = True


class Answering:
    """What answers in the process of a terminal or a server; threads share it.

    One thread generates. Requests of the same version and sampling that wait for it are one batch; what comes meanwhile waits
    for the next one. Each request has its own random numbers, so its reply does not depend on who else is in the batch. Close
    it, or use `with`.
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

        if isinstance(source, Bot):
            self._served = LoadedVersions(source.champion, load, source.usable_versions)
        else:
            self._served = LoadedVersions(lambda: ONE_AGENT, load, lambda: [ONE_AGENT])
        self._seeds, self.max_batch = random.Random(seed), max_batch
        self._waiting: deque[_Request] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._worker: threading.Thread | None = None

    def __enter__(self) -> "Answering":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self, version: str | None = None) -> str:
        """The version of a new dialogue, which stays in memory until `end(version)`. Raises UserError when none loads.

        A dialogue that goes on names its `version`, and gets it unless it was removed, refused or tainted, or does not load.
        """
        return self._served.hold(version)

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
        self, turns: Sequence[str], version: str, seed: int | None = None, options: ReplyOptions = ReplyOptions()
    ) -> AnswerStream:
        """Answer the turns, oldest first, with a version that the dialogue holds; at once it waits for its batch.

        Raises AnsweringClosed, NoRoom, and, read, what the generation raises.
        """
        agent = self._served.agent(version)
        _check_room(agent, options.system)
        turns = _fitting(agent, [turn.strip() for turn in turns])
        with self._changed:
            if self._closed:
                raise AnsweringClosed
            seed = self._seeds.getrandbits(63) if seed is None else seed
            request = _Request(turns, version, seed, options)
            if self._worker is None:
                self._worker = threading.Thread(target=self._work, name="answering", daemon=True)
                self._worker.start()
            self._waiting.append(request)
            self._changed.notify_all()
        return AnswerStream(request)

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
        """The requests that wait and can be answered together with the first of them; none when the program ends."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return []
            first = self._waiting[0]
            batch = [one for one in self._waiting if one.shares_batch(first)][: self.max_batch]
            self._waiting = deque(one for one in self._waiting if one not in batch)
            return [one for one in batch if not one.left] or self._next_batch()

    def _generate(self, batch: list[_Request]) -> None:
        """Answer a batch; each request gets its answer after every token until it has ended."""
        agent = self._served.agent(batch[0].version)
        sampling = batch[0].options.sampling(agent.sampling)
        prompts = [request.turns for request in batch]
        seeds = [torch.Generator().manual_seed(request.seed) for request in batch]
        numbers = torch.cat([random_numbers(1, agent.sampling, CPU, generator) for generator in seeds])
        going = dict(enumerate(batch))

        def show(replies: list[GrowingReply]) -> bool:
            for row, request in list(going.items()):
                reply, used = request.options.cut(replies[row]), {**sampling.settings, "seed": request.seed}
                used |= {"stop": list(request.options.stop)} if request.options.stop else {}
                request.answers.put(GeneratedAnswer(**vars(reply), sampling=used))
                if reply.ended or request.left:
                    del going[row]
            return bool(going) and not self._closed

        systems = [request.options.system for request in batch]
        speaker = agent if sampling == agent.sampling else agent.local(sampling)
        stream(speaker, prompts, show, numbers[:, : sampling.max_new_tokens], systems)
        for request in going.values():
            request.answers.put(AnsweringClosed())


def _fitting(agent: ChatAgent, turns: list[str]) -> list[str]:
    """The newest turns of a prompt, without those for which there is certainly no room: programs send the whole dialogue.

    Alone a turn has a few tokens more or less than among others.
    """
    encoder, kept, size = agent.encoder, list[str](), 0
    for turn in reversed(turns[-agent.settings.context_size :]):
        if size >= encoder.max_prompt_length:
            break
        kept.append(turn)
        size += len(encoder.tokenizer(turn, add_special_tokens=False, verbose=False)["input_ids"]) - FEW
    return kept[::-1]


def _check_room(agent: ChatAgent, system: str | None) -> None:
    """Raises NoRoom."""
    encoder = agent.encoder
    if system is not None and (room := encoder.count_room(system)) < LEAST_ROOM:
        raise NoRoom(
            f"the system message leaves {max(room, 0)} of {encoder.max_prompt_length} tokens for the dialogue; shorten it to "
            f"leave at least {LEAST_ROOM}"
        )
