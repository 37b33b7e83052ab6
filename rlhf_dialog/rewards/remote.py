"""RemoteReward: scores from a server, over HTTP."""

import json
import logging
import os
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from http.client import responses
from typing import Any
from urllib.parse import SplitResult, urlsplit

from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.http_client import Client, EndedEarly, Refused, RequestLimits, TooLong, Unreachable
from rlhf_dialog.rewards.base import BaseReward, NoScore
from rlhf_dialog.rewards.composite import is_finite
from rlhf_dialog.rewards.errors import RewardError
from rlhf_dialog.user_code import TimeLimit

logger = logging.getLogger(__name__)
MAX_ANSWER = 1 << 20  # bytes
MAX_BACKOFF = 30.0  # seconds
RETRIED = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)  # and every 5xx
KEY = "reward_class.args"
Scores = list[float | None]


class Failed(Exception):
    """A request that gave no usable scores; `again`: whether another attempt may help."""

    def __init__(self, what: str, again: bool):
        super().__init__(what)
        self.again = again


class NoAnswer(RewardError):
    """The server gave no usable scores; `said` is the fault alone, without what to do."""

    def __init__(self, said: str, message: str):
        super().__init__(message)
        self.said = said


@RewardFactory.register("RemoteReward")
class RemoteReward(BaseReward):
    """Scores from your own server: POST {"dialogues": [...]} -> {"scores": [...]}, both JSON; docs/REWARDS.md shows them.

    >>> RemoteReward("http://127.0.0.1:8000/score", batch_size=32, timeout_s=5)

    `timeout_s` covers a whole request, from the connection to the last byte. A request is sent again, at most `retries` times,
    after a timeout, a broken connection, status 408, 429 or 5xx, and an answer that is not JSON; the waiting time before it is
    `backoff_s` seconds, doubled each time, at most 30. Redirects are not followed. `token_env` names an environment variable
    whose text is sent as `Authorization: Bearer <text>`; `headers_env` maps other headers to the variables that hold their
    values, so that no secret is in a configuration or message. `num_workers` batches are sent at the same time. Requests go
    straight to the server: `http_proxy` and the like of the environment have no effect; `proxy` names a proxy to use.
    Raises UserError for arguments that cannot work, before anything is sent.
    """

    name = "remote"

    def __init__(  # noqa: PLR0913 - the keys of its YAML
        self,
        url: str,
        batch_size: int = 64,
        timeout_s: float = 30.0,
        retries: int = 3,
        backoff_s: float = 1.0,
        token_env: str | None = None,
        headers_env: dict[str, str] | None = None,
        num_workers: int = 1,
        proxy: str | None = None,
    ):
        parts = _checked_url(url)
        self._target = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
        self.shown = f"{parts.scheme}://{parts.netloc}{parts.path}"  # without a query, which may hold a key
        self.batch_size, self.retries = _whole("batch_size", batch_size, 1), _whole("retries", retries, 0)
        self.timeout_s, self.backoff_s = _seconds("timeout_s", timeout_s, 1e-3), _seconds("backoff_s", backoff_s, 0)
        self.num_workers = _whole("num_workers", num_workers, 1)
        headers = {"Content-Type": "application/json"} | _secret_headers(token_env, headers_env or {})
        before = None if proxy is None else _checked_url(proxy, "proxy")
        self._client = Client(parts, headers, before)

    def __call__(self, dialogues: list[Dialogue]) -> list[float]:
        """One number for each dialogue. Raises RewardError at the first dialogue for which the server gave no score."""
        scores: list[float] = []
        for batch in self._in_batches(dialogues, self._scores):
            if None in batch:
                raise self._error(f"gave null for dialogue {len(scores) + batch.index(None)}", 1)
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

        return [score for batch in self._in_batches(dialogues, scores) for score in batch]

    def _in_batches(self, dialogues: list[Dialogue], score: Callable[[list[Dialogue]], Scores]) -> list[Scores]:
        """The scores of each batch, in order; after the first error no further batch begins."""
        batches = [dialogues[i : i + self.batch_size] for i in range(0, len(dialogues), self.batch_size)]
        if self.num_workers == 1:
            return [score(batch) for batch in batches]
        pool = ThreadPoolExecutor(self.num_workers)
        try:
            return list(pool.map(score, batches))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _scores(self, batch: list[Dialogue], retries: int | None = None) -> Scores:
        """The server's scores of one batch. Raises NoAnswer when there are none after the last retry."""
        body = json.dumps({"dialogues": [as_json(dialogue) for dialogue in batch]}, allow_nan=False).encode()
        tries = 1 + (self.retries if retries is None else retries)
        for attempt in range(1, tries + 1):
            try:
                return _read_scores(self._post(body), len(batch))
            except Failed as error:
                failed = error
            if attempt == tries or not failed.again:
                break
            logger.info("reward 'remote': %s %s; attempt %d of %d follows", self.shown, failed, attempt + 1, tries)
            time.sleep(min(self.backoff_s * 2 ** (attempt - 1), MAX_BACKOFF))
        raise self._error(str(failed), attempt)

    def _post(self, body: bytes) -> bytes:
        """The body of the answer to one request. Raises Failed."""
        try:
            return self._client.ask("POST", self._target, RequestLimits(self.timeout_s, MAX_ANSWER), body)
        except TimeLimit:
            raise Failed(f"gave no complete answer within {self.timeout_s:g} seconds", again=True) from None
        except Refused as error:
            raise _refusal(error.status) from None
        except TooLong:
            raise Failed(f"answered with more than {MAX_ANSWER} bytes", again=False) from None
        except EndedEarly as error:
            raise Failed(f"ended its answer {error.missing} bytes early", again=True) from None
        except Unreachable as error:
            reason = error.reason  # only the system's text is shown, since other errors may quote the server
            words = reason.strerror or "no details" if isinstance(reason, OSError) else "a broken answer"
            raise Failed(f"cannot be reached ({type(reason).__name__}: {words})", again=True) from None

    def _error(self, what: str, tries: int) -> "NoAnswer":
        said = f"{self.shown} {what} (tried {'once' if tries == 1 else f'{tries} times'})"
        return NoAnswer(
            said,
            f"reward 'remote': {said}. Check the server and its log; {KEY}.timeout_s and "
            f"{KEY}.retries set how long to wait, and `on_reward_error: skip` trains without the dialogues that have no score",
        )


def as_json(dialogue: Dialogue) -> dict[str, Any]:
    """The part of a dialogue that is sent to the server."""
    names = ("prompt_turns", "response", "reference", "act", "truncated")
    system = {"system": dialogue.system} if dialogue.system else {}
    return {name: getattr(dialogue, name) for name in names} | system


def _refusal(status: int) -> Failed:
    name = f"{status} {responses.get(status, '')}".strip()
    if 300 <= status < 400:
        return Failed(f"answered {name}; redirects are not followed: give the final address as {KEY}.url", again=False)
    return Failed(f"answered {name}", again=status >= 500 or status in RETRIED)


def _read_scores(body: bytes, count: int) -> Scores:
    """The scores of an answer. Raises Failed when it breaks the protocol."""
    try:
        answer = json.loads(body)
    except ValueError:
        raise Failed(f"answered with {len(body)} bytes that are not JSON", again=True) from None
    scores = answer.get("scores") if isinstance(answer, dict) else None
    if not isinstance(scores, list):
        raise Failed('answered without a list "scores"', again=False)
    if len(scores) != count:
        raise Failed(f"answered with {len(scores)} scores for {count} dialogues", again=False)
    for i, score in enumerate(scores):
        if score is not None and not _is_number(score):
            kind = "not finite" if isinstance(score, float) else f"a {type(score).__name__}"
            what = f"a score (number {i} of {count}) that is {kind}, not a number or null"
            raise Failed(f"answered with {what}", again=False)
    return [None if score is None else float(score) for score in scores]


def _is_number(score: Any) -> bool:
    if isinstance(score, bool) or not isinstance(score, (int, float)):
        return False
    return abs(score) <= 1e308  # exact for whole numbers of any length, False for NaN and inf


def _checked_url(url: Any, key: str = "url") -> SplitResult:
    """The parts of an http or https address. Raises UserError, which does not show the address: it may hold a secret."""
    problem = None
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good or re.search(r"[\s\x00-\x1f\x7f]", url) or not url.isascii():
        problem = "must be an address like http://127.0.0.1:8000/score, http or https, in ASCII without spaces"
    elif parts.username is not None or parts.password is not None:
        problem = "holds a user or password, which would be saved with the configuration; leave them out"
        problem += ", and give the name of an environment variable in token_env" if key == "url" else ""
    if problem:
        raise UserError(f"{KEY}.{key}: {problem}")
    return parts


def _secret_headers(token_env: str | None, headers_env: dict[str, str]) -> dict[str, str]:
    """Headers with the values of environment variables. Raises UserError when one is missing or cannot be a header."""
    if not isinstance(headers_env, dict):
        raise UserError(f"{KEY}.headers_env: must be a mapping of headers to names of environment variables")
    found = {str(header): _secret("headers_env", variable) for header, variable in headers_env.items()}
    if wrong := [header for header in found if not re.fullmatch(r"[A-Za-z0-9-]+", header)]:
        raise UserError(f"{KEY}.headers_env: {wrong[0]!r} is not a valid header name; use letters, digits and -")
    return found | ({"Authorization": f"Bearer {_secret('token_env', token_env)}"} if token_env is not None else {})


def _secret(key: str, variable: Any) -> str:
    """The text of an environment variable; messages show its name only if it looks like a name, not like the secret itself."""
    is_name = isinstance(variable, str) and re.fullmatch(r"[A-Z_][A-Z0-9_]{0,60}", variable)
    place = f"{KEY}.{key}: the environment variable {repr(variable) if is_name else 'given'}"
    value = os.environ.get(variable) if isinstance(variable, str) else None
    if not value:
        raise UserError(f"{place} is not set; give the name of one, not the secret")
    if not re.fullmatch(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?", value):
        raise UserError(f"{place} must hold one line of ASCII text")
    return value


def _whole(key: str, value: Any, lowest: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
        raise UserError(f"{KEY}.{key}: {value!r} must be a whole number, at least {lowest}")
    return value


def _seconds(key: str, value: Any, lowest: float) -> float:
    if not is_finite(value) or not lowest <= float(value) <= 86400:
        raise UserError(f"{KEY}.{key}: {value!r} must be a number of seconds, at least {lowest:g}, at most a day")
    return float(value)
