"""The page of a bot in a browser: people talk to it, rate, correct and compare its answers, and open their dialogues again.

What a bot or a person wrote is shown as text: no markup of it is read. This module and `layout` import Gradio.
"""

import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import Any

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when gradio is imported
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"

import gradio as gr
import gradio.queueing
from fastapi import FastAPI

from rlhf_dialog.commands.terminal_state import terminal_person
from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.page import rendering
from rlhf_dialog.feedback.page.layout import LOOKS, build
from rlhf_dialog.feedback.page.request_filter import TRADE_CODE, RequestFilter
from rlhf_dialog.feedback.sessions.batched_generation import Answering
from rlhf_dialog.feedback.sessions.chat_session import ChatSession, SessionChanged
from rlhf_dialog.feedback.sessions.http_requests import THIS_MACHINE, log_failure
from rlhf_dialog.feedback.sessions.open_sessions import OpenSessions
from rlhf_dialog.feedback.sessions.rates import Rates, check_length
from rlhf_dialog.feedback.store.people import People
from rlhf_dialog.feedback.store.settings import PageKeys
from rlhf_dialog.feedback.store.store import Store

logger = logging.getLogger(__name__)
View = list[Any]  # what the components of `layout.build` show, in their order; the last one is the note


def find_owner(limits: PageKeys, has_logins: bool, hosts: Collection[str] | None) -> str | None:
    """The random id of the terminal's person, who all browsers are with `page_person: terminal`; None: each is its own.

    That is for a page of this machine alone: with logins, or under other names, a warning says that it has no effect.
    """
    if limits.page_person == "browser":
        return None
    if has_logins or hosts is None or not set(hosts) <= set(THIS_MACHINE):
        logger.warning("page_person: terminal has no effect with logins, or with another --host or --allow_host")
        return None
    return terminal_person()


class FeedbackPage:
    """The page, and what its buttons do. `app` is the ASGI application, `demo` Gradio's part of it.

    `logins` are names and passwords; without them the page is open to whoever reaches it. `hosts` are the names that it
    answers to (None: any). The `place` that a page shows, and sends, is a dialogue's id and state, "" for a new one.
    """

    def __init__(
        self,
        store: Store,
        answering: Answering,
        logins: list[tuple[str, str]] | None = None,
        limits: PageKeys | None = None,
        hosts: Collection[str] | None = THIS_MACHINE,
    ):
        self.store, self.answering = store, answering
        self.name = store.path.parent.resolve().name  # of the bot's folder
        self.limits = limits or PageKeys()
        self.rates = Rates(self.limits)
        self.talks = OpenSessions(store, answering, self.limits)
        self.demo = build(self)
        off = dict.fromkeys(("run_history", "show_error", "ssr_mode", "mcp_server", "pwa", "enable_monitoring"), False)
        parent = gr.mount_gradio_app(
            FastAPI(openapi_url=None),
            self.demo,
            "/",
            auth=logins,
            auth_message=rendering.CONSENT,
            footer_links=[],
            max_file_size=1,
            head=TRADE_CODE,
            **off,
            **LOOKS,
        )
        self.owner = find_owner(self.limits, has_logins=logins is not None, hosts=hosts)
        secret = "".join(store.hash_person(f"cookies of the page {number}") for number in range(4))
        self._gradio: Any = parent.routes[-1].app  # type: ignore[attr-defined]  # what was mounted; not `demo.app`
        is_logged_in = (lambda cookies: True) if logins is None else self._is_logged_in
        inputs = {number: len(function.inputs) for number, function in self.demo.fns.items()}
        gradio.queueing.traceback = SimpleNamespace(print_exc=log_failure)  # type: ignore[assignment]  # it would print texts
        trade = People.load(store.path.parent).trade
        self.app = RequestFilter(
            parent, store.bot, self.limits, hosts, is_logged_in, secret=secret, inputs=inputs, trade=trade
        )

    def _person(self, request: gr.Request) -> str | None:
        """The random id of who sends a request; None without our cookie."""
        person = self.app.cookie.read(request.cookies)
        return person and (self.owner or person)

    def _is_logged_in(self, cookies: Mapping[str, str]) -> bool:
        """Whether the cookies of a request hold a token that Gradio gave for a password."""
        names = (f"access-token-{self._gradio.cookie_id}", f"access-token-unsecure-{self._gradio.cookie_id}")
        return any(cookies.get(name) in self._gradio.tokens for name in names)

    def say(self, text: str, place: str, request: gr.Request) -> Iterator[View]:
        """Answer a message, as the answer grows; the first output is what the box of the message holds."""

        def answer(talk: ChatSession) -> Iterator[str]:
            return talk.say(check_length(str(text), self.limits, "the message"))

        box: Any = ""  # at once and once: meanwhile people write the next message
        for view, is_answered in self._stream_answer(place, request, answer, str(text).strip()):
            yield [box if is_answered else text, *view]
            box = gr.skip()

    def say_example(self, place: str, request: gr.Request, data: gr.SelectData) -> Iterator[View]:
        """Answer an example that was clicked, as if it was typed."""
        yield from self.say(str(data.value["text"]), place, request)

    def again(self, place: str, request: gr.Request) -> Iterator[View]:

        def answer(talk: ChatSession) -> Iterator[str]:
            if rendering.find_pair_to_compare(talk):
                raise UserError("say first which of the two answers is better")
            return talk.again()

        yield from (view for view, _ in self._stream_answer(place, request, answer, None))

    def thumb(self, place: str, request: gr.Request, data: gr.LikeData) -> Iterator[View]:
        """At Gradio's index of a message: a thumb (True, False), a reason of the flag (text), a thumb taken back (empty)."""
        liked: Any = data.liked
        is_stored = False

        def act(talk: ChatSession) -> str:
            nonlocal is_stored
            items = rendering.list_messages(talk)
            number = data.index[0] if isinstance(data.index, (list, tuple)) else data.index
            if talk.grows and isinstance(number, int) and number >= len(items):
                raise UserError("this answer is not finished; rate it when it is")
            if not isinstance(number, int) or not 0 <= number < len(items) or not items[number].is_answer:
                raise UserError("only the bot's answers can be rated")
            item = items[number]
            is_liked, reason = liked is True, str(liked) if liked in rendering.REASONS else ""
            if liked in ("", None):
                talk.withdraw("thumb", turn=item.turn.id)
            elif (item.liked, item.reason or "") != (is_liked, reason):  # Gradio sends a reason twice
                talk.thumb(is_liked, reason, turn=item.turn.id)
            is_stored = True
            if liked in ("", None):
                return "Saved: your thumb is taken back."
            said = "you like this answer" if is_liked else "you do not like this answer"
            return f"Saved: {said}{f' ({reason.lower()})' if reason else ''}."

        view = self._act(place, request, act, is_thumb=True)
        if not is_stored and isinstance(view[0], gr.Chatbot):
            # a browser that was told no other mark keeps the one that was clicked
            marks = [*(view[0].feedback_value or ()), None]
            yield [gr.Chatbot(feedback_value=[None if mark else "Like" for mark in marks]), *SKIPPED[1:]]
        yield view
        yield SKIPPED

    def draft(self, place: str, request: gr.Request) -> list[Any]:
        """Open the editor with the last answer: its parts, its text, the note."""
        updates: list[str] = []

        def read(talk: ChatSession) -> None:
            if talk.last is None or rendering.find_pair_to_compare(talk):
                raise UserError("there is not yet one answer to edit")
            updates.append(talk.texts[talk.last.position])

        said = self._act(place, request, read, kind="looks")[-1]
        return [gr.Column(visible=True), *updates, said] if updates else [gr.skip(), gr.skip(), said]

    def edit(self, better: str, place: str, request: gr.Request) -> View:
        """A better answer than the last one; the editor stays open when it cannot be stored."""

        def act(talk: ChatSession) -> None:
            talk.edit(check_length(str(better or ""), self.limits, "the answer"))

        return self._act(place, request, act, "Saved: the dialogue goes on with your answer.", closes_editor=True)

    def choose_first(self, place: str, request: gr.Request) -> View:
        return self._choose(place, request, 0)

    def choose_second(self, place: str, request: gr.Request) -> View:
        return self._choose(place, request, 1)

    def _choose(self, place: str, request: gr.Request, number: int) -> View:
        def act(talk: ChatSession) -> None:
            if not (pair := rendering.find_pair_to_compare(talk)):
                raise UserError("there is only one answer; ask for another one first")
            numbers = [turn.id for turn in talk.alternatives()]
            talk.choose(numbers.index(pair[number].id) + 1)

        which = ("first", "second")[number]
        return self._act(place, request, act, f"Saved: the {which} answer is better; the dialogue goes on with it.")

    def score(self, value: int | None, place: str, request: gr.Request) -> View:
        """1 to 5 for the last answer."""
        return self._act(place, request, lambda talk: talk.score(value), f"Saved: {value} of 5 for the last answer.")

    def score_dialogue(self, value: int | None, place: str, request: gr.Request) -> View:
        said = f"Saved: {value} of 5 for this dialogue."
        return self._act(place, request, lambda talk: talk.score_dialogue(value), said)

    def why(self, place: str, request: gr.Request) -> View:
        """What the last answer came from."""
        return self._act(place, request, lambda talk: talk.why(), kind="looks")

    def begin(self, request: gr.Request) -> View:
        """A new dialogue, with the champion of now."""
        return self.open("", request)

    def open(self, dialogue: str | None, request: gr.Request) -> View:
        """A dialogue of before, with its ratings."""
        if person := self._person(request):
            self.talks.close(person, str(request.session_hash))
        return self._act(str(dialogue or ""), request, lambda talk: None, kind="looks", closes_editor=True)

    def forget(self, request: gr.Request) -> View:

        def remove(talk: ChatSession) -> str:
            return f"Removed: {talk.forget()} rows, which is all that was stored of you."

        view = self._act("", request, remove, closes_editor=True)
        if person := self._person(request):
            self.talks.close(person)
        return view

    def leave(self, request: gr.Request) -> None:
        """The tab was closed."""
        self.talks.close(page=str(request.session_hash))

    @contextmanager
    def _session(self, place: str, request: gr.Request, kind: str, is_thumb: bool = False) -> Iterator[ChatSession]:
        """The session of a page, after its request was counted. Raises SessionChanged where the page shows an old state.

        A thumb waits for no answer that grows, and finds the session also when the page does not show the whole answer yet.
        """
        person = self._person(request)
        if person is None:
            raise UserError(
                "this page needs its cookie to know which dialogues are yours; allow cookies, and load it again"
            )
        self.rates.count(kind, self.store.hash_person(person))
        talk = self.talks.find(person, str(request.session_hash)) if is_thumb else None
        if talk is not None and talk.asked_at == place:
            with talk.changing:
                if talk.grows:
                    yield talk
                    return
                place = talk.place
        dialogue, _, state = str(place or "").partition(" ")
        with self.talks.talk(person, str(request.session_hash), dialogue) as talk:
            if state not in ("", talk.state):
                raise SessionChanged
            yield talk

    def _act(
        self,
        place: str,
        request: gr.Request,
        act: Callable[[ChatSession], str | None],
        said: str = "",
        kind: str = "ratings",
        closes_editor: bool = False,
        is_thumb: bool = False,
    ) -> View:
        """Do something with the session of a page; the page then shows what `act` returned, else `said`, or why it failed."""
        try:
            with self._session(place, request, kind, is_thumb) as talk:
                try:
                    return self._view(talk, rendering.note_html(act(talk) or said), closes_editor)
                except SessionChanged:
                    raise
                except UserError as error:
                    return self._view(talk, rendering.problem_html(error))
        except UserError as error:
            return self._show_refusal(place, request, error)

    def _stream_answer(
        self, place: str, request: gr.Request, begin: Callable[[ChatSession], Iterator[str]], question: str | None
    ) -> Iterator[tuple[View, bool]]:
        """Views of an answer as it grows, below what the person `said`, each with whether there is one; the last is whole."""
        try:
            with self._session(place, request, "messages") as talk:
                asked = [] if question is None else [rendering.gradio_message("user", question)]
                before = [*rendering.gradio_messages(rendering.list_messages(talk)), *asked]
                with closing(begin(talk)) as growing:  # type: ignore[type-var]  # a generator
                    yield [before, *SKIPPED[1:-1], rendering.note_html("")], True
                    try:
                        for text in growing:
                            shown = [*before, rendering.gradio_message("agent", text)]
                            yield [shown, *SKIPPED[1:]], True  # a note about a thumb stays
                    except SessionChanged:
                        raise
                    except UserError as error:
                        yield self._view(talk, rendering.problem_html(error)), False
                        return
                note = rendering.problem_html(UserError(talk.problem)) if talk.problem else gr.skip()
                yield self._view(talk, note, closes_editor=True), True
                yield SKIPPED, True
        except UserError as error:
            yield self._show_refusal(place, request, error), False

    def _show_refusal(self, place: str, request: gr.Request, error: UserError) -> View:
        """Why nothing was done; a dialogue that went on elsewhere is shown as it is now."""
        if not isinstance(error, SessionChanged):
            return [*SKIPPED[:-1], rendering.problem_html(error)]
        view = self.open(str(place).partition(" ")[0], request)
        return [*view[:-1], view[-1] or rendering.problem_html(UserError(rendering.CHANGED))]

    def _view(self, talk: ChatSession, note: Any, closes_editor: bool = False) -> View:
        items, pair, ratings = rendering.list_messages(talk), rendering.find_pair_to_compare(talk), talk.ratings()
        is_one = talk.last is not None and not pair
        rating = ratings.get(talk.last.id, {}) if talk.last else {}
        choices = rendering.list_dialogues(self.store, talk.person)
        thumbs = [rendering.thumb_label(one) for one in items if one.is_answer]
        if talk.grows:  # what else is on the page stays
            return [gr.Chatbot(feedback_value=thumbs), *SKIPPED[1:-1], note]
        return [
            gr.Chatbot(value=rendering.gradio_messages(items, bool(pair)), feedback_value=thumbs),
            talk.place,
            gr.Row(visible=bool(pair)),
            gr.Row(visible=is_one),
            gr.Radio(value=rating.get("score"), visible=is_one),
            gr.Radio(value=ratings.get(None, {}).get("dialogue_score"), visible=is_one),
            gr.Dropdown(choices=choices, value=talk.dialogue, visible=bool(choices)),
            rendering.describe_versions(talk, items),
            gr.Column(visible=False) if closes_editor else gr.skip(),
            note,
        ]


# it ends what streams views: Gradio sends the last one twice, and by then a browser may have been told of a newer thumb
SKIPPED: View = [gr.skip()] * 10
