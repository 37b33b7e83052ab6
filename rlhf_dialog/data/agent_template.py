"""The chat template of a saved agent, by which other programs write the prompts that it was trained on.

It begins with a comment that holds the agent's settings. Then it joins messages of one role in a row, takes the newest
`context_size` turns, trims them and removes what must not be in them. With `turn_separator: chat_template` the tokenizer's own
template follows and writes them; else each turn ends with the separator.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlhf_dialog.data.chat_template import TemplateEncoder, TurnEncoder
from rlhf_dialog.data.dialogue import render_prompt
from rlhf_dialog.data.prompt_ids import PROBE, PromptEncoder
from rlhf_dialog.json_files import FAULTS, parse_json

FILE = "chat_template.jinja"
HEAD, HEAD_END = "{#- agent of rlhf-dialog ", " -#}\n"
OWN = "{# the template of the tokenizer #}\n"  # without a dash: the template begins as if it stood alone
STORED = "chat_template"  # in the settings of an agent with a separator: the tokenizer's own template

WORDS = """\
{%- macro agent_words(text, marks) -%}
{%- set agent = namespace(text=text) -%}
{%- for step in range(@PASSES@) -%}
{%- set before = agent.text -%}
{%- for mark in marks -%}{%- set agent.text = agent.text | replace(mark, ' ') -%}{%- endfor -%}
{%- if agent.text != before -%}{%- set agent.text = agent.text.split() | join(' ') -%}{%- endif -%}
{%- endfor -%}
{{- agent.text -}}
{%- endmacro -%}
"""
TURNS = """\
{%- set agent_marks = @MARKS@ -%}
{%- set agent_reply_marks = @REPLY_MARKS@ -%}
{%- set agent = namespace(system='', turns=[], kept=[]) -%}
{%- for message in messages -%}
{%- set content = message.content or '' -%}
{%- set text = (content if content is string else content | map(attribute='text') | join(' ')) | trim -%}
{%- set last = agent.turns[-1] if agent.turns else none -%}
{%- if message.role in ['system', 'developer'] -%}
{%- set agent.system = agent.system ~ '\\n\\n' ~ text if agent.system else text -%}
{%- elif message.tool_calls or message.role == 'tool' -%}
{%- set agent.turns = agent.turns + [dict(message, content=text or message.content)] -%}
{%- elif last and last.role == message.role and not last.tool_calls -%}
{%- set agent.turns = agent.turns[:-1] + [{'role': last.role, 'content': last.content ~ '\\n\\n' ~ text}] -%}
{%- else -%}
{%- set agent.turns = agent.turns + [{'role': message.role, 'content': text}] -%}
{%- endif -%}
{%- endfor -%}
{%- set agent.system = agent_words(agent.system, agent_marks) or @SYSTEM@ -%}
{%- set agent.answered = agent.turns and agent.turns[-1].role == 'assistant' and not add_generation_prompt -%}
{%- set agent.room = @CONTEXT@ + 1 if agent.answered else @CONTEXT@ -%}
{%- for turn in agent.turns | reverse -%}
{%- if agent.room > 0 -%}{%- set agent.start = loop.revindex0 -%}{%- endif -%}
{%- if not turn.tool_calls and turn.role != 'tool' -%}{%- set agent.room = agent.room - 1 -%}{%- endif -%}
{%- endfor -%}
{%- for turn in agent.turns[agent.start:] -%}
{%- set words = agent_words(turn.content or '', agent_reply_marks if turn.role == 'assistant' else agent_marks) -%}
{%- if not (loop.first and turn.role == 'assistant' and (@REFUSED_BEHIND@ if agent.system else @REFUSED@)) -%}
{%- set agent.kept = agent.kept + [dict(turn, content=words if turn.content else turn.content)] -%}
{%- endif -%}
{%- endfor -%}
"""
NO_SYSTEM = """\
{%- set agent.first = 0 if agent.kept and agent.kept[0].role == 'user' else 1 -%}
{%- if agent.system and agent.kept | length > agent.first -%}
{%- set words = agent.system ~ '\\n\\n' ~ agent.kept[agent.first].content -%}
{%- set agent.kept = agent.kept[:agent.first] + [{'role': 'user', 'content': words}] + agent.kept[agent.first + 1:] -%}
{%- endif -%}
{%- set agent.system = '' -%}
"""
TEMPLATE = """\
{%- set messages = ([{'role': 'system', 'content': agent.system}] if agent.system else []) + agent.kept -%}
{%- set enable_thinking = false -%}
"""
SEPARATOR = """\
{{- @BEGIN@ -}}
{%- set turns = ([{'content': agent.system}] if agent.system else []) + agent.kept -%}
{%- for turn in turns -%}{{- (' ' if not loop.first else '') ~ (turn.content or '') ~ @END@ -}}{%- endfor -%}
{%- if agent.answered -%}{{- eos_token -}}{%- endif -%}
"""


def agent_template(encoder: TurnEncoder, settings: dict[str, Any]) -> str | dict[str, str]:
    """The template to save with an agent of these `settings` (those of `rlhf_dialog.json`), which reads through `encoder`.

    Of several templates of the tokenizer it replaces the one named `default`.
    """
    original = encoder.tokenizer.chat_template
    if isinstance(encoder, PromptEncoder):
        stored = {} if original is None else {STORED: original}
        return _head(encoder, settings | stored) + _fill_in(SEPARATOR, _separator_values(encoder))
    head = _head(encoder, settings) + ("" if encoder.takes_system else NO_SYSTEM) + TEMPLATE + OWN
    return original | {"default": head + original["default"]} if isinstance(original, dict) else head + str(original)


def _head(encoder: TurnEncoder, settings: dict[str, Any]) -> str:
    """The settings, and the lines that turn the messages into `agent.system` and `agent.kept`."""
    comment = json.dumps(settings).replace("#", "\\u0023")  # nothing may end the comment
    can_arise = any(" " in mark for mark in encoder.marks)  # where a space replaces another one
    system, reply_marks = encoder.system_prompt or "", encoder.marks
    may_begin: dict[str | None, bool] = {None: True}
    if isinstance(encoder, TemplateEncoder):
        reply_marks, may_begin = encoder.reply_marks, encoder.assistant_may_begin
    else:
        system = encoder.spoken(system.strip())
    values = {
        "PASSES": "text | length" if can_arise else "1",
        "MARKS": _literal(encoder.marks),
        "REPLY_MARKS": "agent_marks" if reply_marks == encoder.marks else _literal(reply_marks),
        "SYSTEM": _literal(system),
        "CONTEXT": str(settings["context_size"]),
        "REFUSED": _literal(not may_begin[None]),
        "REFUSED_BEHIND": _literal(not may_begin.get(PROBE, may_begin[None])),
    }
    return HEAD + comment + HEAD_END + _fill_in(WORDS + TURNS, values)


def _separator_values(encoder: PromptEncoder) -> dict[str, str]:
    """What begins a prompt so that it has the encoder's ids: some tokenizers need a space behind BOS, others do not."""
    tokenizer, begin = encoder.tokenizer, ""
    if encoder.prefix:
        beginnings = [f"{tokenizer.bos_token}{space}" for space in ("", " ")]
        whole, prompt = encoder.encode_prompt([PROBE]), render_prompt([PROBE], encoder.separator)
        read = {text: tokenizer(text + prompt, add_special_tokens=False, verbose=False) for text in beginnings}
        begin = next((text for text, inputs in read.items() if inputs["input_ids"] == whole), beginnings[0])
    return {"BEGIN": _literal(begin), "END": _literal(f" {encoder.separator}")}


def _fill_in(text: str, values: dict[str, str]) -> str:
    return re.sub("@([A-Z_]+)@", lambda match: values[match[1]], text)


def _literal(value: bool | str | Sequence[str]) -> str:
    """A value as Jinja writes it."""
    return json.dumps(value, ensure_ascii=False)


def own_template(template: Any) -> Any:
    """The tokenizer's own template, of a template as it was saved; what is no agent's is returned as it is."""
    if isinstance(template, dict):
        return {name: own_template(one) for name, one in template.items()}
    settings = settings_in(template)
    if settings is None:
        return template
    return template.partition(OWN)[2] if OWN in template else settings.get(STORED)


def stored_settings(folder: Path) -> dict[str, Any]:
    """The settings in the template of an agent's folder; empty where it has none."""
    try:
        settings = settings_in((folder / FILE).read_text(encoding="utf-8"))
    except FAULTS:
        return {}
    return {name: value for name, value in (settings or {}).items() if name != STORED}


def settings_in(template: Any) -> dict[str, Any] | None:
    """The settings in the comment with which an agent's template begins; None where it does not."""
    if isinstance(template, dict):
        template = template.get("default")
    if not isinstance(template, str) or not template.startswith(HEAD):
        return None
    try:
        settings = parse_json(template.removeprefix(HEAD).partition(HEAD_END)[0].encode())
    except FAULTS:
        return None
    return settings if isinstance(settings, dict) else None
