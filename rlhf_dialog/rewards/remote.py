"""RemoteReward: scores from a server, over HTTP."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.http_client import Client, RequestFailed, address_parts, ask_again, authorization, in_threads
from rlhf_dialog.rewards.base import ARGS, BaseReward, NoScore, RewardError, number, whole

logger = logging.getLogger(__name__)
MAX_ANSWER = 1 << 20  # bytes
REMEDY = (
    f"Check the server and its log; {ARGS}.timeout_s and {ARGS}.retries set how long to wait, and `on_reward_error: skip` trains "
    "without the dialogues that have no score"
)
Scores = list[float | None]


class NoAnswer(RewardError):
    """The server gave no usable scores; `said` is the fault alone, without what to do."""

    def __init__(self, said: str, name: str):
        super().__init__(f"reward '{name}': {said}. {REMEDY}")
        self.said = said


@RewardFactory.register("RemoteReward")
class RemoteReward(BaseReward):
    """Scores from your own server: POST {"dialogues": [...]} -> {"scores": [...]}, both JSON; docs/REWARDS.md shows them.

    >>> RemoteReward("http://127.0.0.1:8000/score", batch_size=32, timeout_s=5)

    `timeout_s` covers a whole request, from the connection to the last byte. A request is sent again, at most `retries` times,
    after a timeout, a broken connection, status 408, 429 or 5xx, and an answer that is not JSON; the waiting time before it is
    `backoff_s` seconds, doubled each time, at most 30. Redirects are not followed. `token_env` names an environment variable
    whose text is sent as `Authorization: Bearer <text>`, so that no secret is in a configuration or message. `num_workers`
    batches are sent at the same time. Proxies of the environment are not used. Raises UserError for arguments that cannot
    work, before anything is sent.
    """

    name = "remote"

    def __init__(
        self,
        url: str,
        batch_size: int = 64,
        timeout_s: float = 30.0,
        retries: int = 3,
        backoff_s: float = 1.0,
        token_env: str | None = None,
        num_workers: int = 1,
    ):
        parts = address_parts(url, f"{ARGS}.url")
        self._target = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
        self.shown = f"{parts.scheme}://{parts.netloc}{parts.path}"  # without a query, which may hold a key
        self.batch_size, self.retries = whole("batch_size", batch_size), whole("retries", retries, 0)
        self.num_workers = whole("num_workers", num_workers)
        day = "number of seconds, at most a day"
        self.timeout_s = number("timeout_s", timeout_s, f"a {day}, at least 0.001", lambda x: 1e-3 <= x <= 86400)
        self.backoff_s = number("backoff_s", backoff_s, f"a {day}, at least 0", lambda x: 0 <= x <= 86400)
        token = authorization(token_env, f"{ARGS}.token_env")
        self._client = Client(parts, {"Content-Type": "application/json"} | token, self.timeout_s, MAX_ANSWER)

    def __call__(self, dialogues: list[Dialogue]) -> list[float]:
        """One number for each dialogue. Raises RewardError at the first dialogue for which the server gave no score."""
        scores: list[float] = []
        batches = self._batches(dialogues)
        for batch in in_threads(batches, lambda batch: self._scores(batch, self.retries), self.num_workers):
            if None in batch:
                raise NoAnswer(f"{self.shown} gave null for dialogue {len(scores) + batch.index(None)}", self.name)
            scores += [score for score in batch if score is not None]
        return scores

    def score_available(self, dialogues: list[Dialogue]) -> Scores:
        """One number for each dialogue; None where the server gave no score, `NoScore` where it gave no answer.

        After a batch without an answer, every other batch of this call is tried only once.
        """
        retries = self.retries

        def scores(batch: list[Dialogue]) -> Scores:
            nonlocal retries
            try:
                return self._scores(batch, retries)
            except NoAnswer as error:
                retries = 0
                logger.warning("%s", error)
                return [NoScore(error.said)] * len(batch)

        return [score for batch in in_threads(self._batches(dialogues), scores, self.num_workers) for score in batch]

    def _batches(self, dialogues: list[Dialogue]) -> list[list[Dialogue]]:
        return [dialogues[i : i + self.batch_size] for i in range(0, len(dialogues), self.batch_size)]

    def _scores(self, batch: list[Dialogue], retries: int) -> Scores:
        """The server's scores of one batch. Raises NoAnswer when there are none after the last retry."""
        body = json.dumps({"dialogues": [as_json(dialogue) for dialogue in batch]}, allow_nan=False).encode()

        def ask() -> Scores:
            return _read_scores(self._client.ask("POST", self._target, body), len(batch))

        with no_answer_of(self.shown, self.name):
            return ask_again(ask, retries, self.backoff_s, f"reward '{self.name}': {self.shown}")


@contextmanager
def no_answer_of(shown: str, name: str) -> Iterator[None]:
    """A request that failed as NoAnswer of the reward `name` and the server `shown`."""
    try:
        yield
    except RequestFailed as error:
        raise NoAnswer(f"{shown} {error} (tried {error.tried})", name) from None


def as_json(dialogue: Dialogue) -> dict[str, Any]:
    """The part of a dialogue that is sent to the server."""
    names = ("prompt_turns", "response", "reference", "act", "truncated")
    system = {"system": dialogue.system} if dialogue.system else {}
    return {name: getattr(dialogue, name) for name in names} | system


def _read_scores(body: bytes, count: int) -> Scores:
    """The scores of an answer. Raises RequestFailed when it breaks the protocol."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        raise RequestFailed("answered with what is not JSON", again=True) from None
    scores = answer.get("scores") if isinstance(answer, dict) else None
    if not isinstance(scores, list) or len(scores) != count:
        found = f"{len(scores)} scores" if isinstance(scores, list) else 'no list "scores"'
        raise RequestFailed(f"answered with {found} for {count} dialogues", again=False)
    for i, score in enumerate(scores):
        is_number = isinstance(score, int | float) and not isinstance(score, bool)
        if score is not None and not (is_number and abs(score) <= 1e308):  # False for NaN and inf
            raise RequestFailed(
                f"answered with a score (number {i} of {count}) that is no finite number or null", False
            )
    return [None if score is None else float(score) for score in scores]
