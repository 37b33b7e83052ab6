"""What is on the page: its parts, and what each of them does. How it looks is in page.css: light and dark, a desk and a phone.

It loads no font, and has no share icon and no footer.
"""

import html
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gradio as gr

from rlhf_dialog.feedback.page.chat_session import SCORES
from rlhf_dialog.feedback.page.rendering import CONSENT, GREETING, REASONS, split_introduction

MAX_WAITING = 500  # events of all people together
MAX_ANSWERING = 24  # of Gradio's 40 threads; the others store feedback
CSS = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
THEME = gr.themes.Default(
    primary_hue="indigo",
    neutral_hue="slate",
    font=["system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "sans-serif"],
    font_mono=["ui-monospace", "Consolas", "DejaVu Sans Mono", "monospace"],
)
LOOKS = {"theme": THEME, "css": CSS}


def build(page: Any) -> gr.Blocks:
    """The page as Gradio describes it; the methods of `page` (a `page.FeedbackPage`) are what its parts do."""
    # longer than is allowed, so that what is pasted is refused, and not cut in silence
    longest = page.limits.page_request_bytes // 8
    with gr.Blocks(title=f"Chat with {page.name}", analytics_enabled=False) as demo:
        title, examples = split_introduction(page.answering.introduction() or page.name)
        gr.HTML(f"<h1>{html.escape(title)}</h1><p>{CONSENT}</p>", elem_id="head")
        place = gr.Textbox("", visible="hidden")
        with gr.Row():
            with gr.Column(scale=3, min_width=300):
                chat, compare, better, tools, edit, why, editor, status, box = _dialogue_parts(longest, examples)
            with gr.Column(scale=1, min_width=240, elem_id="side"):
                new = gr.Button("New dialogue")
                earlier = gr.Dropdown([], label="Your dialogues", filterable=False, elem_id="earlier", visible=False)
                score, whole = (_score_radio(f"The {what}: 1 bad, 5 good", name) for what, name in SCORED)
                version = gr.HTML("", elem_id="who")
                removed = _forget_button()
        view = [chat, place, compare, tools, score, whole, earlier, version, editor.parts, status]
        on = partial(_connect, outputs=view)
        on_answer = partial(on, concurrency_limit=MAX_ANSWERING, concurrency_id="answers")
        on_answer(box.submit, page.say, [box, place], outputs=[box, *view])
        on_answer(chat.example_select, page.say_example, place, outputs=[box, *view])
        on_answer(chat.retry, page.again, place)
        on(chat.like, page.thumb, place)
        on(edit.click, page.draft, place, outputs=[editor.parts, editor.text, status])
        on(editor.save.click, page.edit, [editor.text, place])
        on(editor.cancel.click, lambda: gr.Column(visible=False), None, outputs=editor.parts)
        on(better[0].click, page.choose_first, place)
        on(better[1].click, page.choose_second, place)
        on(score.input, page.score, [score, place])
        on(whole.input, page.score_dialogue, [whole, place])
        on(why.click, page.why, place)
        on(new.click, page.begin, None)
        on(earlier.input, page.open, earlier, preprocess=False)  # the list may be older than the server
        on(removed.click, page.forget, None)
        on(demo.load, page.begin, None)
        demo.unload(page.leave)
    return demo.queue(max_size=MAX_WAITING, default_concurrency_limit=None, api_open=False)


def _connect(event: Callable[..., Any], do: Callable[..., Any], inputs: Any, outputs: Any, **options: Any) -> None:
    """When `event` of a part happens, do this at once, without a sign of progress."""
    event(do, inputs, outputs, show_progress="hidden", api_visibility="private", **options)


SCORED = (("last answer", "score"), ("dialogue", "whole"))


class Editor(NamedTuple):
    """Where a better answer is written. Gradio's own editor would show what is written as HTML."""

    parts: gr.Column
    text: gr.Textbox
    save: gr.Button
    cancel: gr.Button


def _editor(longest: int) -> Editor:
    with gr.Column(visible=False, elem_id="editor") as parts:
        text = gr.Textbox(label="What the answer should be", lines=2, max_length=longest)
        with gr.Row():
            save, cancel = gr.Button("Save", variant="primary", size="sm"), gr.Button("Cancel", size="sm")
    return Editor(parts, text, save, cancel)


def _dialogue_parts(longest: int, examples: list[str]) -> tuple[Any, ...]:
    """The dialogue, the choice between two answers, what can be done with one, a better one, what was done, and the message."""
    chat = gr.Chatbot(
        show_label=False,
        elem_id="chat",
        height=None,
        placeholder=GREETING,
        examples=[{"text": text} for text in examples] or None,
        render_markdown=False,
        allow_tags=False,
        latex_delimiters=[],
        buttons=["copy"],
        group_consecutive_messages=False,
        feedback_options=("Like", "Dislike", *REASONS),
    )
    with gr.Row(visible=False, elem_id="compare") as compare:
        better = [gr.Button(f"The {one} answer is better", size="sm") for one in ("first", "second")]
    with gr.Row(visible=False, elem_id="tools") as tools:
        edit, why = (gr.Button(label, size="sm") for label in ("Edit the answer", "Why this answer?"))
    editor = _editor(longest)
    status = gr.HTML("", elem_id="note")
    box = gr.Textbox(
        show_label=False,
        label="Message",
        placeholder="Write a message",
        max_length=longest,
        submit_btn="Send",
        autofocus=True,
        elem_id="message",
    )
    return chat, compare, better, tools, edit, why, editor, status, box


def _score_radio(label: str, name: str) -> gr.Radio:
    return gr.Radio([(str(one), one) for one in SCORES], label=label, visible=False, elem_id=name)


def _forget_button() -> gr.Button:
    """Asks whether it is meant; returns the button that says yes."""
    forget = gr.Button("Forget me", size="sm", elem_id="forget")
    with gr.Column(visible=False) as sure:
        gr.HTML("All your dialogues and ratings are removed. This cannot be undone.")
        with gr.Row():
            yes, no = gr.Button("Remove all", size="sm", variant="stop"), gr.Button("Keep", size="sm")
    forget.click(lambda: gr.Column(visible=True), None, sure, api_visibility="private")
    gr.on([yes.click, no.click], lambda: gr.Column(visible=False), None, sure, api_visibility="private")
    return yes
