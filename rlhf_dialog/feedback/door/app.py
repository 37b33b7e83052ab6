"""The routes of the API, in OpenAI's shapes."""

import asyncio
import json
import logging
from contextlib import aclosing
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.door import ratings
from rlhf_dialog.feedback.door.answers import Answers, RunningAnswer, read_context
from rlhf_dialog.feedback.door.callers import Caller, Callers
from rlhf_dialog.feedback.door.guard import CallerLimits, as_response
from rlhf_dialog.feedback.door.requests import ApiError, ChatRequest, names_of, read_chat_request
from rlhf_dialog.feedback.sessions.batched_generation import Answering, GeneratedAnswer
from rlhf_dialog.feedback.store.bot import Bot
from rlhf_dialog.feedback.store.settings import ApiKeys
from rlhf_dialog.feedback.store.store import Store
from rlhf_dialog.json_files import parse_json

logger = logging.getLogger(__name__)
IGNORED_HEADER = "X-Ignored-Parameters"


class Door:
    """The API of a bot; `app` is the ASGI application, for a `Guard`. Close `answers` before `answering` and the store."""

    def __init__(self, bot: Bot, store: Store, answering: Answering, callers: Callers, limits: ApiKeys | None = None):
        self._bot, self._store, self._answering, self._callers = bot, store, answering, callers
        self._keys = limits or ApiKeys()
        self._limits = CallerLimits(self._keys)
        self.name = bot.folder.resolve().name
        self.answers = Answers(store, answering)
        self.app = Starlette(
            routes=[
                Route("/v1/models", self.list_models),
                Route("/v1/models/{model:path}", self.show_model),
                Route("/v1/chat/completions", self.complete, methods=["POST"]),
                Route("/v1/feedback", self.rate, methods=["POST"]),
                Route("/v1/feedback/{answer}", self.withdraw, methods=["DELETE"]),
                Route("/v1/people/me", self.forget, methods=["DELETE"]),
            ],
            exception_handlers={
                ApiError: _answer_refusal,  # type: ignore[dict-item]
                UserError: _answer_failure,  # type: ignore[dict-item]
                HTTPException: _answer_unknown,  # type: ignore[dict-item]
                Exception: _answer_error,  # which raises it again, for the guard's log
            },
        )

    async def list_models(self, request: Request) -> Response:
        """The bot, and its versions for teachers."""
        models = await run_in_threadpool(self._models, request)
        return JSONResponse({"object": "list", "data": models})

    async def show_model(self, request: Request) -> Response:
        models = await run_in_threadpool(self._models, request)
        found = [model for model in models if model["id"] == request.path_params["model"]]
        if not found:
            raise _unknown_model()
        return JSONResponse(found[0])

    async def complete(self, request: Request) -> Response:
        body = _parse(await request.body())
        running = await run_in_threadpool(self._begin, request, body)
        ignored = names_of(running.request.ignored)
        return AnswerResponse(running, {IGNORED_HEADER: ignored} if ignored else {})

    async def rate(self, request: Request) -> Response:
        body = _parse(await request.body())

        def act() -> dict[str, Any]:
            caller = self._count(request, "ratings", body)
            return ratings.rate(self._store, caller, body, self._keys.api_rating_chars, self._spoken)

        return JSONResponse(await run_in_threadpool(act))

    async def withdraw(self, request: Request) -> Response:
        body = _parse(await request.body() or b"{}")

        def act() -> dict[str, Any]:
            caller = self._count(request, "ratings", body)
            return ratings.withdraw(self._store, caller, request.path_params["answer"])

        return JSONResponse(await run_in_threadpool(act))

    async def forget(self, request: Request) -> Response:
        body = _parse(await request.body() or b"{}")

        def act() -> dict[str, Any]:
            caller = self._count(request, "ratings", body)
            return ratings.forget(self._bot, self._store, caller, body)

        return JSONResponse(await run_in_threadpool(act))

    def _spoken(self, text: str) -> str:
        version = self._answering.begin()
        try:
            return self._answering.spoken(text, version)
        finally:
            self._answering.end(version)

    def _begin(self, request: Request, body: Any) -> RunningAnswer:
        caller = self._count(request, "messages", body)
        asked = read_chat_request(body)
        version = self._version_of(asked, caller)
        context = read_context(request.headers, caller, asked, self._store)
        slot = self._limits.answering(caller, _address(request))
        return self.answers.begin(caller, asked, context, version, slot)

    def _count(self, request: Request, kind: str, body: Any = None) -> Caller:
        """Who sends a request, which is counted. Raises ApiError: 400, 401, 429."""
        user = body.get("user") if isinstance(body, dict) else None
        caller = self._callers.find(request.headers, user if isinstance(user, str) else None)
        self._limits.count(kind, caller, _address(request))
        return caller

    def _version_of(self, asked: ChatRequest, caller: Caller) -> str | None:
        """The version that a model's name asks for; None: that of the dialogue. Raises ApiError, 404."""
        if asked.keys.model == self.name:
            return None
        name, _, version = asked.keys.model.rpartition("@")
        if name != self.name or caller.role != "teacher" or version not in self._bot.usable_versions():
            raise _unknown_model()
        return version

    def _models(self, request: Request) -> list[dict[str, Any]]:
        caller = self._count(request, "looks")
        paths = {self.name: self._bot.folder / "champion"}
        if caller.role == "teacher":
            versions = self._bot.usable_versions()
            paths |= {f"{self.name}@{version}": self._bot.agent_folder(version) for version in versions}
        return [
            {"id": name, "object": "model", "created": int(path.stat().st_mtime), "owned_by": "rlhf-dialog"}
            for name, path in paths.items()
        ]


class AnswerResponse(Response):
    """Sends an answer, as it grows where the request says so. A reader that leaves lets go of it."""

    def __init__(self, running: RunningAnswer, headers: dict[str, str]):
        self.running, self._more_headers = running, headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = (
            self._stream(scope, receive, send) if self.running.request.keys.stream else self._send(scope, receive, send)
        )
        work, gone = asyncio.ensure_future(sending), asyncio.ensure_future(_wait_until_gone(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            for task in (work, gone):
                task.cancel()
            await asyncio.wait({work, gone})

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        running = self.running
        async with aclosing(running.follow()) as changes:
            async for _ in changes:
                pass
        if running.error is not None:
            await as_response(running.error)(scope, receive, send)
            return
        choices = [
            {
                "index": number,
                "message": {"role": "assistant", "content": answer.text, "refusal": None},
                "logprobs": None,
                "finish_reason": _finish_reason(answer),
            }
            for number, answer in enumerate(running.answers)
        ]
        body = self._object("chat.completion", choices) | {"usage": _usage(running.answers)}
        await JSONResponse(body, headers=self._more_headers)(scope, receive, send)

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        running, has_begun = self.running, False
        shown = [""] * running.request.num_choices

        async def say(found: Any, more: bool = True) -> None:
            text = found if isinstance(found, str) else json.dumps(found, allow_nan=False)
            await send({"type": "http.response.body", "body": f"data: {text}\n\n".encode(), "more_body": more})

        async with aclosing(running.follow()) as changes:
            async for _ in changes:
                if running.version is None or (running.error and not has_begun):
                    continue
                if not has_begun:
                    has_begun = True
                    kind = {"content-type": "text/event-stream; charset=utf-8", "x-accel-buffering": "no"}
                    headers = [
                        (name.lower().encode(), value.encode()) for name, value in (kind | self._more_headers).items()
                    ]
                    await send({"type": "http.response.start", "status": 200, "headers": headers})
                    for number in range(len(shown)):
                        await say(self._chunk(number, {"role": "assistant", "content": ""}))
                answers = running.answers
                for number, answer in enumerate(answers):
                    if new := answer.text[len(shown[number]) :]:
                        await say(self._chunk(number, {"content": new}))
                        shown[number] = answer.text
                running.sent = answers
        if running.error is not None:
            if has_begun:
                await say(running.error.body, more=False)
            else:
                await as_response(running.error)(scope, receive, send)
            return
        for number, answer in enumerate(running.answers):
            await say(self._chunk(number, {}, _finish_reason(answer)))
        if running.request.includes_usage:
            await say(self._object("chat.completion.chunk", []) | {"usage": _usage(running.answers)})
        await say("[DONE]", more=False)

    def _chunk(self, number: int, delta: dict[str, str], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": number, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        usage = {"usage": None} if self.running.request.includes_usage else {}
        return self._object("chat.completion.chunk", [choice]) | usage

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        running = self.running
        return {
            "id": f"chatcmpl-{running.id}",
            "object": kind,
            "created": int(running.created),
            "model": running.request.keys.model,
            "system_fingerprint": running.version,
            "choices": choices,
        }


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def _finish_reason(answer: GeneratedAnswer) -> str:
    return "length" if answer.truncated else "stop"


def _usage(answers: tuple[GeneratedAnswer, ...]) -> dict[str, int]:
    """The numbers of tokens; the prompt counts once."""
    prompt, completion = answers[0].num_prompt_ids, sum(len(answer.ids) for answer in answers)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _parse(body: bytes) -> Any:
    try:
        return parse_json(body)
    except ValueError:
        raise ApiError(400, "the body: is not JSON; send an object") from None


def _unknown_model() -> ApiError:
    message = "model: there is none of this name that you can use; GET /v1/models lists those that you can"
    return ApiError(404, message, code="model_not_found", param="model")


async def _answer_refusal(request: Request, error: ApiError) -> Response:
    return as_response(error)


async def _answer_failure(request: Request, error: UserError) -> Response:
    logger.warning("a request was not answered: %s", error)
    return as_response(ApiError(503, "the bot cannot answer this now; ask again in a minute", "server_error"))


async def _answer_error(request: Request, error: Exception) -> Response:
    return as_response(ApiError(500, "the server could not answer this; its log says where", "server_error"))


async def _answer_unknown(request: Request, error: HTTPException) -> Response:
    what = "there is no such method here" if error.status_code == 405 else "there is no such address"
    return as_response(ApiError(error.status_code, what, headers=dict(error.headers or {})))


async def _wait_until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
