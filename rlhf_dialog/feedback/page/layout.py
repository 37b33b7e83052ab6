"""What is on the page: its parts, and what each of them does. How it looks is in page.css: light and dark, a desk and a phone.

It loads no font, and has no share icon and no footer.
"""

import html
from pathlib import Path
from typing import Any

import gradio as gr

from rlhf_dialog.feedback.page.rendering import CONSENT, GREETING, REASONS, split_introduction
from rlhf_dialog.feedback.sessions.chat_session import SCORES

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
        title, examples = split_introduction(page.answering.introduction()[1] or page.name)
        gr.HTML(f"<h1>{html.escape(title)}</h1><p>{CONSENT}</p>", elem_id="head")
        place = gr.Textbox("", visible="hidden")
        with gr.Row():
            with gr.Column(scale=3, min_width=300):
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
                    first, second = (gr.Button(f"The {one} answer is better", size="sm") for one in ("first", "second"))
                with gr.Row(visible=False, elem_id="tools") as tools:
                    edit, why = (gr.Button(label, size="sm") for label in ("Edit the answer", "Why this answer?"))
                with gr.Column(visible=False, elem_id="editor") as editor:  # Gradio's own would show a text as HTML
                    better = gr.Textbox(label="What the answer should be", lines=2, max_length=longest)
                    with gr.Row():
                        save, cancel = gr.Button("Save", variant="primary", size="sm"), gr.Button("Cancel", size="sm")
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
            with gr.Column(scale=1, min_width=240, elem_id="side"):
                new = gr.Button("New dialogue")
                earlier = gr.Dropdown([], label="Your dialogues", filterable=False, elem_id="earlier", visible=False)
                numbers = [(str(one), one) for one in SCORES]
                score, whole = (
                    gr.Radio(numbers, label=f"The {what}: 1 bad, 5 good", visible=False, elem_id=name)
                    for what, name in (("last answer", "score"), ("dialogue", "whole"))
                )
                version = gr.HTML("", elem_id="who")
                forget = gr.Button("Forget me", size="sm", elem_id="forget")
                with gr.Column(visible=False) as sure:
                    gr.HTML("All your dialogues and ratings are removed. This cannot be undone.")
                    with gr.Row():
                        yes, no = gr.Button("Remove all", size="sm", variant="stop"), gr.Button("Keep", size="sm")
        view = [chat, place, compare, tools, score, whole, earlier, version, editor, status]
        answers = {"concurrency_limit": MAX_ANSWERING, "concurrency_id": "answers"}
        ratings = {"trigger_mode": "multiple"}  # none is dropped while another one is stored
        events: list[tuple[Any, Any, Any, Any, dict[str, Any]]] = [
            (box.submit, page.say, [box, place], [box, *view], answers),
            (chat.example_select, page.say_example, place, [box, *view], answers),
            (chat.retry, page.again, place, view, answers),
            (chat.like, page.thumb, place, view, ratings),
            (edit.click, page.draft, place, [editor, better, status], {}),
            (save.click, page.edit, [better, place], view, {}),
            (cancel.click, lambda: gr.Column(visible=False), None, editor, {}),
            (first.click, page.choose_first, place, view, {}),
            (second.click, page.choose_second, place, view, {}),
            (score.input, page.score, [score, place], view, ratings),
            (whole.input, page.score_dialogue, [whole, place], view, ratings),
            (why.click, page.why, place, view, {}),
            (new.click, page.begin, None, view, {}),
            (earlier.input, page.open, earlier, view, {"preprocess": False}),  # the list may be older than the server
            (forget.click, lambda: gr.Column(visible=True), None, sure, {}),
            (yes.click, lambda: gr.Column(visible=False), None, sure, {}),
            (yes.click, page.forget, None, view, {}),
            (no.click, lambda: gr.Column(visible=False), None, sure, {}),
            (demo.load, page.begin, None, view, {}),
        ]
        for event, do, inputs, outputs, options in events:
            event(do, inputs, outputs, show_progress="hidden", api_visibility="private", **options)
        demo.unload(page.leave)
    return demo.queue(max_size=MAX_WAITING, default_concurrency_limit=None, api_open=False)
