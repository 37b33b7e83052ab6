"""What is on the page and how it looks: its parts, what each of them does, light and dark, a desk and a phone.

It loads no font, and has no share icon and no footer.
"""

import html
from typing import Any, NamedTuple

import gradio as gr

from rlhf_dialog.feedback.shown import REASONS
from rlhf_dialog.feedback.talk import SCORES

CONSENT = (
    "What you write and how you rate it is stored to train this bot. You are known by a random number in a cookie, and by "
    "nothing else; <b>Forget me</b> removes all that is yours."
)
GREETING = "Say something. Then rate the answers: thumbs, the flag for a reason, the arrow for another answer."
MAX_WAITING = 500  # events of all people together
MAX_ANSWERING = 24  # of Gradio's 40 threads; the others store feedback
CSS = """
.gradio-container {max-width: 1100px !important; margin: 0 auto !important}
main.app, .app {padding: 12px !important}
#head {padding: 0 4px}
#head h1 {font-size: 1.35rem; font-weight: 650; margin: 0}
#head p {font-size: .85rem; margin: 2px 0 0}
#head p, #who, #chat .placeholder-content {color: #475569}
.dark :is(#head p, #who, #chat .placeholder-content) {color: #cbd5e1}
#chat {height: calc(100dvh - 290px) !important; min-height: 300px; border-radius: 12px}
#chat .top-panel, #chat .message-buttons-right {display: none}
#chat .message {border-radius: 12px !important}
#chat .message-content .md {overflow-wrap: anywhere; white-space: pre-wrap}
#chat button {min-width: 28px; min-height: 28px}
#chat .placeholder-content {max-width: 26rem; text-align: center}
#note {min-height: 1.5em; padding: 0 4px; font-size: .9rem}
#note p {margin: 0}
#note [role=alert] {color: #b91c1c; font-weight: 600}
.dark #note [role=alert] {color: #fca5a5}
#message {border-radius: 12px}
#who {font-size: .85rem}
#score .wrap, #whole .wrap {gap: 6px; flex-wrap: nowrap}
#score label, #whole label {padding: 8px 0; flex: 1 1 0; justify-content: center; min-width: 0}
#score label span, #whole label span {margin: 0}
#score input, #whole input {position: absolute; opacity: 0; width: 1px; height: 1px; pointer-events: none}
#score label.selected, #whole label.selected {background: #4338ca; border-color: #4338ca; color: #fff}
:is(#score, #whole) label.selected span {color: #fff}
#score label:focus-within, #whole label:focus-within {outline: 2px solid var(--color-accent)}
#earlier input {text-overflow: ellipsis; padding-right: 20px}
#forget {align-self: flex-start; background: none; border: none; box-shadow: none; color: #b91c1c; text-decoration: underline}
.dark #forget {color: #fca5a5}
footer {display: none !important}
@media (max-width: 700px) {
  #chat {height: calc(100dvh - 350px) !important}
  #message textarea {font-size: 16px}
}
"""
SANS = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "sans-serif"]
MONO = ["ui-monospace", "Consolas", "DejaVu Sans Mono", "monospace"]


def theme() -> gr.themes.Base:
    """A theme that loads no font."""
    return gr.themes.Default(primary_hue="indigo", neutral_hue="slate", font=SANS, font_mono=MONO)


def build(page: Any) -> gr.Blocks:
    """The page as Gradio describes it; the methods of `page` (a `page.Page`) are what its parts do."""
    with gr.Blocks(title=f"Chat with {page.name}", analytics_enabled=False) as demo:
        gr.HTML(f"<h1>{html.escape(page.name)}</h1><p>{CONSENT}</p>", elem_id="head")
        dialogue = gr.Textbox("", visible="hidden")
        with gr.Row():
            with gr.Column(scale=3, min_width=300):
                chat, compare, better, editor, status, box = _talking(page.limits.message_chars)
            with gr.Column(scale=1, min_width=240):
                new = gr.Button("New dialogue")
                earlier = gr.Dropdown([], label="Your dialogues", filterable=False, elem_id="earlier")
                score, whole = (_scores(f"The {what}: 1 bad, 5 good", name) for what, name in SCORED)
                edit = gr.Button("Edit the answer", size="sm")
                why = gr.Button("Why this answer?", size="sm")
                version = gr.HTML("", elem_id="who")
                removed = _forgetting()
        view = [chat, dialogue, compare, score, whole, earlier, version, status]
        hidden: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
        quick = {"outputs": view, **hidden}
        slow = {**quick, "concurrency_limit": MAX_ANSWERING, "concurrency_id": "answers"}
        box.submit(page.say, [box, dialogue], **{**slow, "outputs": [box, *view]})
        chat.retry(page.again, dialogue, **slow)
        chat.like(page.thumb, dialogue, **quick)
        edit.click(page.draft, dialogue, [editor.parts, editor.text, status], **hidden)
        editor.save.click(page.edit, [editor.text, dialogue], **{**quick, "outputs": [editor.parts, *view]})
        editor.cancel.click(lambda: gr.Column(visible=False), None, editor.parts, **hidden)
        better[0].click(page.choose_first, dialogue, **quick)
        better[1].click(page.choose_second, dialogue, **quick)
        score.input(page.score, [score, dialogue], **quick)
        whole.input(page.score_dialogue, [whole, dialogue], **quick)
        why.click(page.why, dialogue, **quick)
        new.click(page.begin, None, **quick)
        earlier.input(page.open, earlier, preprocess=False, **quick)  # the list may be older than the server
        removed.click(page.forget, None, **quick)
        demo.load(page.begin, None, **quick)
        demo.unload(page.leave)
    return demo.queue(max_size=MAX_WAITING, default_concurrency_limit=None, api_open=False)


SCORED = (("last answer", "score"), ("dialogue", "whole"))


class Editor(NamedTuple):
    """Where a better answer is written. Gradio's own editor would show what is written as HTML."""

    parts: gr.Column
    text: gr.Textbox
    save: gr.Button
    cancel: gr.Button


def _editor(message_chars: int) -> Editor:
    with gr.Column(visible=False, elem_id="editor") as parts:
        text = gr.Textbox(label="What the answer should be", lines=2, max_length=message_chars)
        with gr.Row():
            save, cancel = gr.Button("Save", variant="primary", size="sm"), gr.Button("Cancel", size="sm")
    return Editor(parts, text, save, cancel)


def _talking(message_chars: int) -> tuple[gr.Chatbot, gr.Row, list[gr.Button], Editor, gr.HTML, gr.Textbox]:
    """The dialogue, the choice between two answers, a better one, what was done, and the box of the message."""
    chat = gr.Chatbot(
        show_label=False,
        elem_id="chat",
        height=None,
        placeholder=GREETING,
        render_markdown=False,
        allow_tags=False,
        latex_delimiters=[],
        buttons=["copy"],
        group_consecutive_messages=False,
        feedback_options=("Like", "Dislike", *REASONS),
    )
    with gr.Row(visible=False, elem_id="compare") as compare:
        better = [gr.Button(f"The {one} answer is better") for one in ("first", "second")]
    editor = _editor(message_chars)
    status = gr.HTML("", elem_id="note")
    box = gr.Textbox(
        show_label=False,
        label="Message",
        placeholder="Write a message",
        max_length=message_chars,
        submit_btn=True,
        autofocus=True,
        elem_id="message",
    )
    return chat, compare, better, editor, status, box


def _scores(label: str, name: str) -> gr.Radio:
    return gr.Radio([(str(one), one) for one in SCORES], label=label, visible=False, elem_id=name)


def _forgetting() -> gr.Button:
    """Asks whether it is meant; returns the button that says yes."""
    forget = gr.Button("Forget me", size="sm", elem_id="forget")
    with gr.Column(visible=False) as sure:
        gr.HTML("All your dialogues and ratings are removed. This cannot be undone.")
        with gr.Row():
            yes, no = gr.Button("Remove all", size="sm", variant="stop"), gr.Button("Keep", size="sm")
    forget.click(lambda: gr.Column(visible=True), None, sure, api_visibility="private")
    gr.on([yes.click, no.click], lambda: gr.Column(visible=False), None, sure, api_visibility="private")
    return yes
