"""Texts in which a dialogue was written down before: with the marks of a chat template, or as a transcript."""

import re
from collections.abc import Sequence

MARKS = (  # what the chat templates of known families write around a turn, and behind a text; none is a plain word
    *("<|im_start|>", "<|im_end|>", "<|im_sep|>", "<|endoftext|>"),  # ChatML: Qwen, Yi, SmolLM2, Phi-4
    *("[INST]", "[/INST]", "<<SYS>>", "<</SYS>>", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),  # Llama 2, Mistral
    *("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),  # Llama 3
    *("<|header_start|>", "<|header_end|>", "<|eot|>"),  # Llama 4
    *("<start_of_turn>", "<end_of_turn>", "<|turn>", "<turn|>"),  # Gemma
    *("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),  # Phi-3, Zephyr, TinyLlama, Falcon, GLM
    *("<｜User｜>", "<｜Assistant｜>", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),  # DeepSeek
    *("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>"),  # Command R
    *("<|start|>", "<|message|>", "<|channel|>", "<|return|>"),  # gpt-oss
    *("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"),  # Granite
    *("<|prompter|>", "<|end_of_turn|>", "<end_of_utterance>"),  # OpenAssistant, OpenChat, Idefics
)
END = re.compile(r"</s>\s*\Z")  # of Llama 2, Mistral, Vicuna, Zephyr; elsewhere it may be HTML
SPEAKER = re.compile(  # a speaker at the start of a line: "Human:", "### USER:", "<bot>:", "<extra_id_1>Assistant"
    r"^[#*<\[ \t]*(?P<name>(?i:system|user|human|prompter|assistant|chatbot|bot|gpt|model|ai)|[HA])[>\]]*:(?:\*\*)?"
    r"|^<extra_id_[01]>(?P<sentinel>System|User|Assistant)[ \t]*$",
    re.MULTILINE,
)
USERS = ("user", "human", "prompter", "h")


def find_mark(text: str, marks: Sequence[str] = MARKS) -> str | None:
    """The first of these marks that the text holds; with MARKS also an `</s>` behind the text."""
    if marks is MARKS:
        if "<" not in text and "[" not in text:
            return None
        if END.search(text):
            return "</s>"
    return next((mark for mark in marks if mark in text), None)


def read_transcript(text: str) -> list[dict[str, str]]:
    """The messages of a transcript, such as `Human: Is it far ?\\n\\nAssistant: No .`; none where it is no transcript.

    The user and the assistant have marks at the start of lines: those behind a blank line, if both have them, and those like the
    first of each. The text before them is the system message, or the user's where the assistant is next. A text that begins
    with a mark, and has none of the other, is messages of one role.
    """
    text = text.replace("\r\n", "\n")
    found = list(SPEAKER.finditer(text))
    apart = [mark for mark in found if not text[: mark.start()].strip() or text[: mark.start()].endswith("\n\n")]
    for marks in (apart, found):
        first = {_role(mark): mark for mark in reversed(marks)}
        one, other = first.get("user"), first.get("assistant")
        if one and other and (len(_name(one)) == 1) == (len(_name(other)) == 1):  # "H:" and "A:", or words
            labels = {one[0].strip(), other[0].strip()}
            return _messages(text, [mark for mark in marks if mark is marks[0] or mark[0].strip() in labels])
    begins = apart and not text[: apart[0].start()].strip() and _role(apart[0]) != "system"
    return _messages(text, [mark for mark in apart if mark[0] == apart[0][0]]) if begins else []


def _name(mark: re.Match[str]) -> str:
    return (mark["name"] or mark["sentinel"]).lower()


def _role(mark: re.Match[str]) -> str:
    name = _name(mark)
    return name if name == "system" else "user" if name in USERS else "assistant"


def _messages(text: str, marks: list[re.Match[str]]) -> list[dict[str, str]]:
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    said = [(_role(mark), text[mark.end() : end]) for mark, end in zip(marks, ends, strict=True)]
    before = text[: marks[0].start()]
    if said[0][0] == "system" and not said[0][1].strip():
        del said[0]
    if before.strip():
        said.insert(0, ("user" if said[0][0] == "assistant" else "system", before))
    return [{"role": role, "content": content} for role, content in said]
