"""The page of a bot in a browser: people talk to it, rate, correct and compare its answers, and open their dialogues again.

What a bot or a person wrote is shown as text: no markup of it is read. Gradio is imported here and in page_layout.
"""

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from typing import Any

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when gradio is imported
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"

import gradio as gr
from fastapi import FastAPI

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.answering import Answering, AnsweringClosed
from rlhf_dialog.feedback.door import THIS_MACHINE, Door
from rlhf_dialog.feedback.limits import Limits, Rates, checked_length
from rlhf_dialog.feedback.open_talks import OpenTalks
from rlhf_dialog.feedback.page_layout import CONSENT, CSS, build, theme
from rlhf_dialog.feedback.shown import (
    REASONS,
    Shown,
    message,
    messages,
    note,
    pair_to_compare,
    pressed,
    problem,
    short,
    shown,
    who,
)
from rlhf_dialog.feedback.store import Store
from rlhf_dialog.feedback.talk import Talk

PATIENCE = "the program is ending; try again in a minute"
View = list[Any]  # what the components of `Page.outputs` show


class Page:
    """The page, and what its buttons do. `app` is the ASGI application, `demo` Gradio's part of it.

    `login` checks a name and a password; without it the page is open to whoever reaches it. `hosts` are the names that it
    answers to (None: any).
    """

    def __init__(
        self,
        store: Store,
        answering: Answering,
        name: str,
        login: Callable[[str, str], bool] | None = None,
        limits: Limits | None = None,
        hosts: Collection[str] | None = THIS_MACHINE,
    ):
        self.store, self.answering, self.name = store, answering, name
        self.limits = Limits() if limits is None else limits
        self.rates = Rates(self.limits)
        self.talks = OpenTalks(store, answering, self.limits)
        self.demo = build(self)
        parent = gr.mount_gradio_app(
            FastAPI(openapi_url=None),
            self.demo,
            "/",
            auth=login,
            auth_message=CONSENT,
            footer_links=[],
            run_history=False,
            show_error=False,
            ssr_mode=False,
            mcp_server=False,
            pwa=False,
            enable_monitoring=False,
            max_file_size=1,
            theme=theme(),
            css=CSS,
        )
        known = (lambda cookies: True) if login is None else self._logged_in
        self.app = Door(parent, store.bot, self.limits, hosts, known)

    def _logged_in(self, cookies: Mapping[str, str]) -> bool:
        """Whether the cookies of a request hold a token that Gradio gave for a password."""
        app = self.demo.app
        names = (f"access-token-{app.cookie_id}", f"access-token-unsecure-{app.cookie_id}")
        return any(cookies.get(name) in app.tokens for name in names)

    def say(self, text: str, dialogue: str, request: gr.Request) -> Iterator[View]:
        """Answer a message, as the answer grows; the first output is what the box of the message holds."""

        def answer(talk: Talk) -> Iterator[str]:
            return talk.say(checked_length(str(text), self.limits, "the message"))

        kept = text
        for view in self._answer(dialogue, request, answer, str(text).strip()):
            kept = "" if view[0] is not SKIPPED[0] else kept
            yield [kept, *view]

    def again(self, dialogue: str, request: gr.Request) -> Iterator[View]:
        """Another answer to the last message."""

        def answer(talk: Talk) -> Iterator[str]:
            if pair_to_compare(talk):
                raise UserError("say first which of the two answers is better")
            return talk.again()

        yield from self._answer(dialogue, request, answer, None)

    def thumb(self, dialogue: str, request: gr.Request, data: gr.LikeData) -> View:
        """A thumb, a reason of the flag, or a thumb that is taken back."""

        def rate(talk: Talk) -> str:
            item = self._answer_at(talk, data.index)
            if data.liked in ("", None):
                talk.withdraw("thumb", turn=item.turn.id)
                return "Saved: your thumb is taken back."
            liked, reason = data.liked is True, str(data.liked) if data.liked in REASONS else ""
            if (item.liked, item.reason or "") != (liked, reason):  # Gradio sends a reason twice
                talk.thumb(liked, reason, turn=item.turn.id)
            said = "you like this answer" if liked else "you do not like this answer"
            return f"Saved: {said}{f' ({reason.lower()})' if reason else ''}."

        return self._rated(dialogue, request, rate)

    def draft(self, dialogue: str, request: gr.Request) -> list[Any]:
        """Open the editor with the last answer: its parts, its text, the note."""
        found: list[str] = []

        def read(talk: Talk) -> str:
            if talk.last is None or pair_to_compare(talk):
                raise UserError("there is not yet one answer to edit")
            found.append(talk.texts[talk.last.position])
            return ""

        text = self._rated(dialogue, request, read, "looks")[-1]
        return [gr.Column(visible=bool(found)), *found, text] if found else [gr.skip(), gr.skip(), text]

    def edit(self, better: str, dialogue: str, request: gr.Request) -> View:
        """A better answer than the last one; the first output is the editor, which stays open when it cannot be stored."""
        stored: list[bool] = []

        def rate(talk: Talk) -> str:
            talk.edit(checked_length(str(better or ""), self.limits, "the answer"))
            stored.append(True)
            return "Saved: the dialogue goes on with your answer."

        view = self._rated(dialogue, request, rate)
        return [gr.Column(visible=not stored), *view]

    def choose_first(self, dialogue: str, request: gr.Request) -> View:
        """The first of two answers is better."""
        return self._choose(0, dialogue, request)

    def choose_second(self, dialogue: str, request: gr.Request) -> View:
        """The second of two answers is better."""
        return self._choose(1, dialogue, request)

    def _choose(self, number: int, dialogue: str, request: gr.Request) -> View:

        def rate(talk: Talk) -> str:
            if not (pair := pair_to_compare(talk)):
                raise UserError("there is only one answer; ask for another one first")
            places = [turn.id for turn in talk.alternatives()]
            talk.choose(places.index(pair[number].id) + 1)
            return f"Saved: the {('first', 'second')[number]} answer is better; the dialogue goes on with it."

        return self._rated(dialogue, request, rate)

    def score(self, value: int | None, dialogue: str, request: gr.Request) -> View:
        """1 to 5 for the last answer."""

        def rate(talk: Talk) -> str:
            talk.score(_score(value))
            return f"Saved: {value} of 5 for the last answer."

        return self._rated(dialogue, request, rate)

    def score_dialogue(self, value: int | None, dialogue: str, request: gr.Request) -> View:
        """1 to 5 for the whole dialogue."""

        def rate(talk: Talk) -> str:
            talk.score_dialogue(_score(value))
            return f"Saved: {value} of 5 for this dialogue."

        return self._rated(dialogue, request, rate)

    def why(self, dialogue: str, request: gr.Request) -> View:
        """What the last answer came from."""
        return self._rated(dialogue, request, lambda talk: talk.why(), "looks")

    def begin(self, request: gr.Request) -> View:
        """A new dialogue, with the champion of now."""
        return self._opened("", request)

    def open(self, dialogue: str | None, request: gr.Request) -> View:
        """A dialogue of before, with its ratings."""
        return self._opened(str(dialogue or ""), request)

    def forget(self, request: gr.Request) -> View:
        """Remove all that is stored of a person; their next request gets another id."""

        def remove(talk: Talk) -> str:
            rows = talk.forget()
            self.app.renew(talk.person)
            return f"Removed: {rows} rows, which is all that was stored of you."

        view = self._rated("", request, remove)
        if person := self.app.person(request.cookies):
            self.talks.close(person)
        return view

    def leave(self, request: gr.Request) -> None:
        """The tab was closed."""
        self.talks.close_page(str(request.session_hash))

    def _opened(self, dialogue: str, request: gr.Request) -> View:
        if person := self.app.person(request.cookies):
            self.talks.close(person, str(request.session_hash))
        return self._rated(dialogue, request, lambda talk: "", "looks")

    def _person(self, request: gr.Request, kind: str) -> str:
        """Their random id, after their request was counted. Raises UserError."""
        person = self.app.person(request.cookies)
        if person is None:
            raise UserError(
                "this page needs its cookie to know which dialogues are yours; allow cookies, and load it again"
            )
        self.rates.count(kind, self.store.hashed(person))
        return person

    def _rated(self, dialogue: str, request: gr.Request, act: Callable[[Talk], str], kind: str = "ratings") -> View:
        """Do something with the Talk of a page; the page shows it afterwards, with what `act` returned or why it failed."""
        try:
            person = self._person(request, kind)
            with self.talks.talk(person, str(request.session_hash), str(dialogue or "")) as talk:
                try:
                    text = note(act(talk))
                except UserError as error:
                    text = problem(error)
                return self._view(talk, text)
        except UserError as error:
            return [*SKIPPED[:-1], problem(error)]

    def _answer(
        self, dialogue: str, request: gr.Request, begin: Callable[[Talk], Iterator[str]], said: str | None
    ) -> Iterator[View]:
        """Views of an answer as it grows, below what the person `said`; the last one has everything."""
        try:
            person = self._person(request, "messages")
            with self.talks.talk(person, str(request.session_hash), str(dialogue or "")) as talk:
                before = [*messages(shown(talk)), *([] if said is None else [message("user", said)])]
                with closing(begin(talk)) as growing:  # type: ignore[type-var]  # a generator
                    for text in growing:
                        yield [[*before, message("agent", text)], *SKIPPED[1:-1], note("")]
                yield self._view(talk, problem(UserError(talk.problem)) if talk.problem else note(""))
        except (UserError, AnsweringClosed) as error:
            yield [*SKIPPED[:-1], problem(error if isinstance(error, UserError) else UserError(PATIENCE))]

    def _answer_at(self, talk: Talk, index: Any) -> Shown:
        """What is shown at Gradio's index of a message. Raises UserError unless it is an answer."""
        found = shown(talk)
        place = index[0] if isinstance(index, (list, tuple)) else index
        if not isinstance(place, int) or not 0 <= place < len(found) or found[place].turn.speaker != "agent":
            raise UserError("only the bot's answers can be rated")
        return found[place]

    def _view(self, talk: Talk, said: str) -> View:
        items, pair = shown(talk), pair_to_compare(talk)
        scores = talk.ratings().get(None if talk.last is None else talk.last.id, {}) if talk.last else {}
        of_dialogue = talk.ratings().get(None, {})
        is_rated = talk.last is not None and not pair
        return [
            gr.Chatbot(value=messages(items), feedback_value=[pressed(one) for one in items if one.is_answer]),
            talk.dialogue or "",
            gr.Row(visible=bool(pair)),
            gr.Radio(value=scores.get("score"), visible=is_rated),
            gr.Radio(value=of_dialogue.get("dialogue_score"), visible=is_rated),
            gr.Dropdown(choices=self._earlier(talk.person), value=talk.dialogue),
            who(talk, items),
            said,
        ]

    def _earlier(self, person: str) -> list[tuple[str, str]]:
        """The person's dialogues: what the list shows, and their ids."""
        return [
            (f"{short(words)}, {time.strftime('%d %b %H:%M', time.localtime(one.started))}", one.id)
            for one, words in self.store.dialogues_of(person)
        ]


SKIPPED: View = [gr.skip()] * 8


def _score(value: int | None) -> int:
    if value is None:
        raise UserError("choose a number from 1 to 5")
    return int(value)
