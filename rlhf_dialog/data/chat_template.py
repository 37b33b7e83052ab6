"""`turn_separator: chat_template`: the tokenizer's own template decides how turns become ids and when a response ends."""

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property, lru_cache
from itertools import takewhile
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from rlhf_dialog.data.dialogue import (
    AUTO,
    BLANK_LINE,
    CHAT_TEMPLATE,
    SEPARATOR,
    Dialogue,
    SystemText,
    ToolText,
    fit_newest,
    remove_marks,
    tools_of,
)
from rlhf_dialog.data.prompt_ids import (
    PROBE,
    PROBE_REPLY,
    PromptEncoder,
    check_room,
    count_shared,
    longest_first,
    pad_id,
    separator_ids,
    special_tokens,
)
from rlhf_dialog.data.prompts import (
    SYSTEM,
    TAGGED,
    TAGS,
    TOOLS,
    having,
    row_numbers,
    select,
)
from rlhf_dialog.data.row_counts import BadRow, RowCounts
from rlhf_dialog.data.sources.record import refuse_rendered
from rlhf_dialog.data.written_texts import MARKS
from rlhf_dialog.errors import UserError
from rlhf_dialog.user_code import TimeLimit, interrupted_after

logger = logging.getLogger(__name__)
ROLES = ("assistant", "user")

PROBE_CALL, PROBE_TOOL = "probe_of_a_call", "probe_of_a_tool"  # names of tools
THINKING = ("<think>", "</think>")  # in data
BEGINS_THOUGHT = re.compile(
    r"(?P<begin>(?P<left>[<\[])(?P<name>[\w:]*(?:think|thought|reason)\w*)(?P<right>[>\]]))\s*"
    r"(?P<closed>(?P=left)/(?P=name)(?P=right)\s*)?\Z",
    re.IGNORECASE,
)
STRFTIME = re.compile(r"""strftime_now\(\s*(["'])([^"']*)\1\s*\)""")
RENDER_SECONDS = 10.0
LEAST_ROOM = 16  # tokens that a system message of the data must leave for turns
ALL_ROOM = 2**31  # of a prompt without one
MOST_SYSTEMS = 1024  # system messages whose room is kept in memory
REMEDY = "name another tokenizer, or give turn_separator a text such as <EOU>"


@dataclass(frozen=True)
class Opening:
    """The text of a generation prompt: its `stem`, then the beginning of a thought, which may be closed again, or nothing.

    >>> opening_of("<|im_start|>assistant\\n<think>\\n")
    Opening(stem='<|im_start|>assistant\\n', thought='<think>\\n', begin='<think>', end='</think>', is_open=True)
    """

    stem: str
    thought: str = ""
    begin: str = ""
    end: str = ""
    is_open: bool = False

    @property
    def text(self) -> str:
        return self.stem + self.thought

    def continued(self, written: str, reply: str) -> str:
        """What follows the prompt: the `reply` that a template has `written` behind the stem, with its thought or without.

        An open thought is continued with that of the reply, which a template may have left out, and closed, even if it is empty.
        A closed one is followed by the rest of the reply alone.
        """
        if written.startswith(self.thought):
            return written[len(self.thought) :]
        before, closed, answer = written.rpartition(self.end)
        if not self.is_open:
            return answer.lstrip() if closed else written
        thought = (before if closed else reply.rpartition(self.end)[0]).split(self.begin)[-1].strip()
        line = "\n" if "\n" in self.thought else ""
        return f"{thought}{line}{self.end}{line * 2}{answer.lstrip()}"


def opening_of(prompt: str) -> Opening:
    """The parts of a generation prompt."""
    found = BEGINS_THOUGHT.search(prompt)
    if found is None:
        return Opening(prompt)
    end = f"{found['left']}/{found['name']}{found['right']}"
    return Opening(prompt[: found.start()], found[0], found["begin"], end, found["closed"] is None)


class TemplateEncoder:
    """Prompts, targets and responses in one tokenizer's chat template; it has the methods of `PromptEncoder`.

    The last turn is the user's, the one before it the assistant's, and so on backwards. An oldest turn of the assistant is left
    out where the template refuses to begin with it; where it takes no system message, that of the data stands before the first
    turn of the user. Inside a turn a space replaces the special tokens, but for the thinking of an assistant. Templates with
    `enable_thinking` get False. A reply that is learned closes the thought that the template has opened, and follows one that it
    has closed. Raises UserError when there is no template, when it fails on a greeting, or takes no `system_prompt`.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_prompt_length: int, system_prompt: str | None = None):
        self.tokenizer, self.max_prompt_length = tokenizer, max_prompt_length
        self.end_id = end_token_id(tokenizer)
        self.end_ids = {self.end_id, tokenizer.eos_token_id} - {None}
        self.pad_id = pad_id(tokenizer)
        self._openings = {
            thinking: opening_of(render(tokenizer, [PROBE], thinking=thinking)) for thinking in (False, None)
        }
        self._probe_ids = self._encode(self._openings[False].text)
        written = [*self._probe_ids, *self._encode(render(tokenizer, [PROBE], PROBE_REPLY)), self.end_id]
        self.marks = control_tokens(tokenizer, written)
        self._tags = max(self._openings.values(), key=lambda opening: len(opening.end))
        self.reply_marks = control_tokens(tokenizer, written, (*THINKING, self._tags.begin, self._tags.end))
        header = self._continue(PROBE_REPLY).partition(PROBE_REPLY)[0].strip()
        self._header, added = header, {*tokenizer.get_added_vocab().values()}
        self._header_ids = {i for i in self._encode(header) if i in added}
        self._heads: dict[str | None, int] = {}
        self.takes_system = writes_system(tokenizer)
        self.system_prompt = None if system_prompt is None else self.spoken(system_prompt)
        if self.system_prompt is not None and not self.takes_system:
            raise UserError(
                "system_prompt: the tokenizer's chat template takes no system message; leave system_prompt out"
            )
        self.assistant_may_begin = {
            system: accepts(tokenizer, [PROBE_REPLY, PROBE], system)
            for system in (None, PROBE)[: 1 + self.takes_system]
        }
        if self.system_prompt is not None:
            check_room(self, self.system_prompt)

    def encode_prompt(
        self, turns: Sequence[str], system: str | None = None, thinking: bool | None = False
    ) -> list[int]:
        """At most `max_prompt_length` ids, from the BOS token, if there is one, to the generation prompt.

        `system`: the system message of this dialogue; None: `system_prompt`, or the template's own. `thinking`: see `render`.
        """
        system = self._system(system)
        spoken = [self.spoken_by(i, turn) for i, turn in zip(range(len(turns), 0, -1), turns, strict=True)]
        head = self._fixed_head(system)
        return fit_newest(spoken, lambda kept: self._encode_turns(kept, system, thinking), self.max_prompt_length, head)

    def encode_example(
        self, turns: Sequence[str], reply: str, system: str | None = None, learn_eos: bool = False
    ) -> tuple[list[int], list[int]]:
        """What supervised fine-tuning reads, and what it learns after that: `learn_eos` has no effect."""
        thinking = self._choose_thinking(self._learned(reply))
        return self.encode_prompt(turns, system, thinking), self.encode_reply(reply, thinking)

    def head(self, system: str | None = None) -> int:
        """How many of the first ids of a prompt with this system message are never cut."""
        return self._fixed_head(self._system(system))

    def count_room(self, system: str | None = None) -> int:
        """How many of `max_prompt_length` tokens are left for turns beside the template and this system message."""
        written = self._encode_turns([PROBE], self._system(system))
        return self.max_prompt_length - len(written) + len(self._encode(PROBE))

    def _system(self, system: str | None) -> str | None:
        tools = tools_of(system)
        text = self.system_prompt if system is None or (tools and not system) else self.spoken(system.strip())
        return SystemText(text or "", tools) if tools else text

    def _fixed_head(self, system: str | None) -> int:
        if system not in self._heads:
            if system is None:
                self._heads[system] = int(self._probe_ids[:1] == [self.tokenizer.bos_token_id])
            else:
                self._heads[system] = count_shared(*(self._encode_turns([x], system) for x in (PROBE, PROBE_REPLY)))
        return self._heads[system]

    def _choose_thinking(self, reply: str) -> bool | None:
        """`enable_thinking` of the prompt that a reply continues: the template's default (None) where it writes a thought."""
        default, closed = self._openings[None], self._openings[False]
        if default == closed or not self._tags.end:
            return False
        if self._tags.end in reply or closed.text.startswith(default.stem):
            whole = render(self.tokenizer, [PROBE], reply, None)
            writes_thought = whole.removeprefix(default.stem).lstrip().startswith(self._tags.begin)
            if writes_thought and whole.startswith(default.text):
                return None
        continues = render(self.tokenizer, [PROBE], reply).startswith(closed.text)
        return None if default.is_open and not continues else False

    def spoken(self, turn: str) -> str:
        """The turn as the model sees it, without special tokens."""
        return remove_marks(turn, self.marks)

    def spoken_by(self, turns_left: int, turn: str) -> str:
        """The turn with `turns_left` - 1 turns behind it, which says whose it is."""
        return remove_marks(turn, self.reply_marks if ROLES[turns_left % 2] == "assistant" else self.marks)

    def encode_reply(self, turn: str, thinking: bool | None = False) -> list[int]:
        """What follows a prompt of `encode_prompt`: the reply as the template writes it, up to its end-of-turn token.

        Encoded with the prompt before it where that begins with the prompt's ids, as a tokenizer may write the start of a text
        differently; else alone.
        """
        opening = self._openings[thinking].text
        text, start = self._continue(self._learned(turn), thinking), self._encode(opening)
        ids = self._encode(opening + text)
        ids = ids[len(start) :] if ids[: len(start)] == start else self._encode(text)
        reply = list(takewhile(lambda i: i not in self.end_ids, ids))
        return ids[: len(reply) + 1] if len(reply) < len(ids) else [*ids, self.end_id]

    def _learned(self, reply: str) -> str:
        """A reply without special tokens, its thought between the tags of the template; calls of tools stay as they are."""
        spoken = self.spoken_by(0, reply)
        if not self._tags.end or isinstance(spoken, ToolText):
            return spoken
        return spoken.replace(THINKING[0], self._tags.begin).replace(THINKING[1], self._tags.end)

    def _continue(self, reply: str, thinking: bool | None = False) -> str:
        """The text of a reply behind a generation prompt, with its end; the reply alone where no prompt begins the template's."""
        opening = self._openings[thinking]
        whole = render(self.tokenizer, [PROBE], reply, thinking)
        if not whole.startswith(opening.stem):
            return reply
        written, (begin, end) = whole.removeprefix(opening.stem), map(re.escape, (self._tags.begin, self._tags.end))
        if begin:  # a template may write an empty thought before that of the reply
            written = re.sub(rf"^\s*{begin}\s*{end}\s*(?={begin})", "", written)
        return opening.continued(written, reply)

    @cached_property
    def rewrites_history(self) -> bool:
        """Whether a reply is written otherwise when a turn follows, so that the ids of a longer prompt begin differently."""
        turns = [PROBE, PROBE_REPLY, PROBE]
        if not accepts(self.tokenizer, turns):
            return False
        reply = self.encode_reply(PROBE_REPLY)
        heard = self.encode_heard(reply, PROBE)
        return [*self._probe_ids, *reply, *heard] != self._encode(render(self.tokenizer, turns))

    def count_end_ids(self, turn: str) -> int:
        """How many of the last ids of `encode_reply(turn)` are the end-of-turn token and the white space before it."""
        before = reversed(self.encode_reply(turn)[:-1])
        return 1 + sum(1 for _ in takewhile(lambda i: not str(self.tokenizer.decode([i])).strip(), before))

    def encode_target(self, turn: str) -> list[int]:
        """The same as `encode_reply`: nothing is learned after the end-of-turn token."""
        return self.encode_reply(turn)

    def encode_heard(self, reply_ids: list[int], turn: str) -> list[int]:
        """The ids between the policy's reply and its next one: the end-of-turn token if the reply has none, the user's turn, and
        the generation prompt."""
        whole = render(self.tokenizer, [PROBE, PROBE_REPLY, self.spoken(turn)])
        ids = self._encode(whole.partition(PROBE_REPLY)[2])
        closed = self.end_id in reply_ids and self.end_id in ids
        return ids[ids.index(self.end_id) + 1 :] if closed else ids

    def reply_text(self, ids: list[int]) -> str:
        """The text that rewards and metrics see: the part before the first end-of-turn token, stripped.

        Where the template writes something between a prompt and the reply, such as the end of a thought or the name of a channel,
        it is the text behind that; empty for a thought that was not closed, and for another channel.
        """
        spoken = list(takewhile(lambda i: i not in self.end_ids, ids))
        if self._header:
            _, found, text = str(self.tokenizer.decode(spoken, skip_special_tokens=False)).rpartition(self._header)
            if found:
                for token in special_tokens(self.tokenizer):
                    text = text.replace(token, "")
                return text.strip()
            if self._openings[False].is_open or self._header_ids.intersection(spoken):
                return ""
        text = str(self.tokenizer.decode(spoken, skip_special_tokens=True)).strip()
        return "" if self._header.startswith(text) else text

    def _encode_turns(self, turns: Sequence[str], system: str | None, thinking: bool | None = False) -> list[int]:
        if len(turns) > 1 and isinstance(turns[0], ToolText) and turns[0].messages[0]["role"] == "tool":
            turns = turns[1:]  # what called the tool was cut off
        if system and not self.takes_system:
            turns, system = put_before_user(turns, system), SystemText("", tools_of(system))
        assistant_begins = len(turns) % 2 == 0
        refused = assistant_begins and not self.assistant_may_begin[PROBE if system else None]
        return self._encode(render(self.tokenizer, turns[1:] if refused else turns, thinking=thinking, system=system))

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


TurnEncoder = PromptEncoder | TemplateEncoder


def encode_without_end(encoder: TurnEncoder, turn: str) -> list[int]:
    """The ids of a reply without those of its end; of a reply that is nothing else, all."""
    ids = encoder.encode_reply(turn)
    return ids[: len(ids) - encoder.count_end_ids(turn)] or ids


def prompt_encoder(
    tokenizer: PreTrainedTokenizerBase, turn_separator: str, max_prompt_length: int, system_prompt: str | None = None
) -> TurnEncoder:
    """The encoder that `turn_separator` asks for. Raises UserError when it needs a chat template that does not work."""
    separator = separator_of(tokenizer, turn_separator)
    if separator == CHAT_TEMPLATE:
        return TemplateEncoder(tokenizer, max_prompt_length, system_prompt)
    return PromptEncoder(tokenizer, separator, max_prompt_length, system_prompt)


def separator_of(tokenizer: PreTrainedTokenizerBase, turn_separator: str = AUTO) -> str:
    """`turn_separator`; for `auto` the chat template of a tokenizer that has one, else <EOU>."""
    if turn_separator != AUTO:
        return turn_separator
    return CHAT_TEMPLATE if tokenizer.chat_template else SEPARATOR


def warn_about_replies(encoder: TurnEncoder) -> None:
    """A warning where a chat template writes a reply so that it is read back from its ids as another text."""
    for text in (PROBE_REPLY, "Yes . Shall I :\n\n1. go ?") if isinstance(encoder, TemplateEncoder) else ():
        if (found := encoder.reply_text(encoder.encode_reply(text))) != text:
            logger.warning(
                "turn_separator: the tokenizer's chat template writes the reply %r so that it is read back as %r, which rewards "
                "and metrics would see; %s",
                text,
                found,
                REMEDY,
            )
            return


def warn_about_marks(encoder: TurnEncoder, *prompts: Sequence[Dialogue]) -> None:
    """A warning with the number of different turns and references in which a template's encoder replaces something."""
    if not isinstance(encoder, TemplateEncoder):  # a separator of text is counted when the data is read
        return
    flags = _flags_of((*encoder.marks, *encoder.reply_marks))
    changed: set[str] = set()
    for some in prompts:
        for _, prompt in having(some, flags):
            said = [(0, reference) for reference in prompt.references]  # by the assistant, whose thoughts are kept
            said += enumerate(reversed(prompt.prompt_turns), 1)
            changed.update(turn for left, turn in said if encoder.spoken_by(left % 2, turn) != turn)
    if changed:
        logger.warning(
            "%d turns or references hold a special token of the tokenizer; a space replaces it in what the model sees",
            len(changed),
        )


def _flags_of(marks: Iterable[str]) -> int | None:
    """The flags of the prompts that may hold one of the marks; None: all may."""
    return TAGGED if all(any(tag in mark for tag in TAGS) for mark in marks) else None


def keep_with_room(encoder: TurnEncoder, prompts: Sequence[Dialogue]) -> Sequence[Dialogue]:
    """The prompts whose system message leaves room for turns; a line says whose it is, another one what was left out.

    Raises UserError when none is left, or as `rows_rendered` does.
    """
    if isinstance(encoder, TemplateEncoder):
        numbers = row_numbers(prompts)
        marks = written_tokens(encoder.tokenizer)
        rows = ((int(numbers[i]), _place(one), texts_of(one)) for i, one in having(prompts, _flags_of(marks)))
        rendered = rows_rendered(marks, rows, count_rows(prompts))
        prompts = keep_writable(encoder, select(prompts, ~np.isin(numbers, list(rendered))))
    count_room = lru_cache(maxsize=MOST_SYSTEMS)(encoder.count_room)
    room, has_text = np.full(len(prompts), ALL_ROOM), np.zeros(len(prompts), bool)
    for i, prompt in having(prompts, SYSTEM | TOOLS):
        has_text[i] = bool(prompt.system)
        if prompt.system or tools_of(prompt.system):
            room[i] = count_room(prompt.system)
    if (room == ALL_ROOM).all():
        return prompts
    fits = room >= LEAST_ROOM
    kept = select(prompts, fits)
    if len(kept) < len(prompts):
        would_do = encoder.max_prompt_length + LEAST_ROOM - int(room.min())
        count = count_rows(prompts)
        line = (
            f"{count - count_rows(kept)} of {count} rows have a system message that leaves fewer than {LEAST_ROOM} of the "
            f"{encoder.max_prompt_length} tokens of max_prompt_length for turns; {would_do} would do"
        )
        if not kept:
            raise UserError(f"max_prompt_length: {line}")
        logger.warning("%s; they are left out", line)
    without = count_rows(select(kept, ~has_text[fits]))
    if without == count_rows(kept):
        return kept
    other = "that of the chat template" if isinstance(encoder, TemplateEncoder) else "none"
    other = other if encoder.system_prompt is None else "system_prompt"
    more = f", {other} in {without}" if without else ""
    logger.info("system message: that of the row in %d rows%s", count_rows(kept) - without, more)
    return kept


def texts_of(dialogue: Dialogue) -> tuple[str | None, ...]:
    """All texts of a dialogue that has not begun."""
    return (*dialogue.prompt_turns, dialogue.system, dialogue.response, *dialogue.references)


def written_tokens(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The special tokens that the tokenizer's chat template writes, without the marks of known families."""
    written = render(tokenizer, [PROBE]) + render(tokenizer, [PROBE], PROBE_REPLY)
    tags = opening_of(render(tokenizer, [PROBE], thinking=None))
    tokens = control_tokens(tokenizer, tokenizer(written)["input_ids"], (*THINKING, tags.begin, tags.end))
    return [token for token in tokens if token in written and not token[0].isalnum() and token not in MARKS]


def rows_rendered(
    marks: Sequence[str], rows: Iterable[tuple[int, str, Iterable[str | None]]], num_rows: int
) -> set[int]:
    """The numbers of those of `rows` (number, place, texts) that hold one of the `marks` (`written_tokens`).

    A line counts them among all `num_rows`. Raises UserError when they are more than a tenth. (The marks of known families are
    found when data is read.)
    """
    rendered, counts = set[int](), RowCounts("data_path", num_rows=num_rows)
    for number, place, texts in rows:
        try:
            for text in texts if number not in rendered else ():
                refuse_rendered(text or "", "a text", place, marks)
        except BadRow as error:
            rendered.add(number)
            counts.add_bad(error)
    if num_rows:
        counts.check_bad()
    counts.log()
    return rendered


def keep_writable(encoder: TemplateEncoder, prompts: Sequence[Dialogue]) -> Sequence[Dialogue]:
    """The prompts without rows whose calls of tools the template does not write; a line counts these, and tools without calls.

    Raises UserError when none is left.
    """
    rows = row_numbers(prompts)
    unwritten, silent = (np.zeros(len(prompts), bool) for _ in range(2))
    for i, prompt in having(prompts, TOOLS):
        *turns, reply = (_with_probe(text) for text in (*prompt.prompt_turns, prompt.reference or PROBE))
        messages = [message for text in (*turns, reply) if isinstance(text, ToolText) for message in text.messages]
        tools = [_named(tool, PROBE_TOOL) for tool in tools_of(prompt.system)]
        if not messages and not tools:
            continue
        try:
            written = render(encoder.tokenizer, turns, reply, system=SystemText(prompt.system or "", tools))
        except UserError:
            written = ""
        num_calls = sum(len(message.get("tool_calls", ())) for message in messages)
        answers = [message["content"].strip() for message in messages if message["role"] == "tool"]
        if written.count(PROBE_CALL) < num_calls or not all(text in written for text in answers) or not written:
            unwritten[i] = True
        elif written.count(PROBE_TOOL) < len(tools):
            silent[i] = True
    unwritten = np.isin(rows, rows[unwritten])
    for number, what, out in (
        (len(np.unique(rows[unwritten])), "tool messages", ", and are left out"),
        (len(np.setdiff1d(rows[silent], rows[unwritten])), "tools", ""),
    ):
        if number:
            logger.warning(
                "%d of %d rows have %s, which the chat template does not write%s",
                number,
                count_rows(prompts),
                what,
                out,
            )
    if len(prompts) and unwritten.all():
        raise UserError("data_path: the chat template writes no tool messages, and all rows have some; give other data")
    return select(prompts, ~unwritten)


def _with_probe(text: str) -> str:
    """The text with a name in place of those of the tools that it calls, which no other text holds."""
    if not isinstance(text, ToolText):
        return text
    messages = [dict(message) for message in text.messages]
    for message in messages:
        if calls := message.get("tool_calls"):
            message["tool_calls"] = [_named(call, PROBE_CALL) for call in calls]
    return ToolText(text, messages)


def _named(tool: dict[str, Any], name: str) -> dict[str, Any]:
    """The tool, or the call of one, with another name."""
    return tool | ({"function": tool["function"] | {"name": name}} if "function" in tool else {"name": name})


def _place(prompt: Dialogue) -> str:
    return f"dialogue {prompt.origin_of('dialogue', id(prompt)) + 1} of the {prompt.origin_of('split')} split"


def count_rows(prompts: Sequence[Dialogue]) -> int:
    """The number of dialogues of the data from which the prompts are."""
    return len(np.unique(row_numbers(prompts)))


def fix_date(tokenizer: PreTrainedTokenizerBase, day: str | None) -> str | None:
    """Let the chat template write this day (`2026-07-26`; None: today) in place of that on which it is used.

    Returns the day; None where the template writes none.
    """
    template = tokenizer.chat_template
    if not isinstance(template, str) or not STRFTIME.search(template):
        return None
    fixed = date.today() if day is None else date.fromisoformat(day)
    tokenizer.chat_template = STRFTIME.sub(lambda call: f"'{fixed.strftime(call[2])}'", template)
    return fixed.isoformat()


def closing_ids(tokenizer: PreTrainedTokenizerBase, turn_separator: str) -> set[int]:
    """The ids that end a turn, none where plain text ends it. Raises UserError as `end_of_turn` does."""
    separator = separator_of(tokenizer, turn_separator)
    return {end_token_id(tokenizer)} if separator == CHAT_TEMPLATE else separator_ids(tokenizer, separator)


def control_tokens(
    tokenizer: PreTrainedTokenizerBase, written: Iterable[int], allowed: Iterable[str] = ()
) -> list[str]:
    """What a turn must not hold: the special tokens, and those of the added tokens that a template has `written`."""
    added = {i: token for token, i in tokenizer.get_added_vocab().items() if token.strip()}
    return longest_first({*special_tokens(tokenizer), *(added[i] for i in written if i in added)} - {*allowed})


def end_token_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The first special or added token that the template puts after the assistant's text; else the end-of-text token.

    Raises UserError when there is neither, or when the template is missing, fails, or leaves out the assistant's text.
    """
    _, found, after_reply = render(tokenizer, [PROBE], PROBE_REPLY).rpartition(PROBE_REPLY)
    if not found:
        raise UserError(f"turn_separator: the tokenizer's chat template leaves out the assistant's text; {REMEDY}")
    added = {i for token, i in tokenizer.get_added_vocab().items() if token.strip()}
    after = [i for i in tokenizer(after_reply, add_special_tokens=False)["input_ids"] if i in added]
    for end in (*after, tokenizer.eos_token_id):
        if end is not None:
            return int(end)
    raise UserError(
        "turn_separator: the tokenizer's chat template does not end the assistant's text with a special token, and the tokenizer "
        f"has no eos_token; {REMEDY}"
    )


def writes_system(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the template takes a system message and writes its text."""
    try:
        return PROBE_REPLY in render(tokenizer, [PROBE], system=PROBE_REPLY)
    except UserError:
        return False


def put_before_user(turns: Sequence[str], system: str) -> list[str]:
    """The turns with a system message before the first turn of the user, for a template that takes none."""
    first = (len(turns) + 1) % 2
    return [BLANK_LINE.join([system, turn]) if i == first else turn for i, turn in enumerate(turns)]


def accepts(tokenizer: PreTrainedTokenizerBase, turns: Sequence[str], system: str | None = None) -> bool:
    """Whether the template renders a prompt of these turns."""
    try:
        render(tokenizer, turns, system=system)
    except UserError:
        return False
    return True


def render(
    tokenizer: PreTrainedTokenizerBase,
    turns: Sequence[str],
    reply: str | None = None,
    thinking: bool | None = False,
    system: str | None = None,
) -> str:
    """The turns as the template writes them, followed by `reply`, or by the generation prompt when there is none.

    `system` is the text of a system message before them; None: the template begins as it does by itself. `thinking` is the
    template's `enable_thinking`; None: the template's own default. Raises UserError when the tokenizer has no template, or when
    the template fails or takes longer than `RENDER_SECONDS`.
    """
    if not tokenizer.chat_template:
        raise UserError(f"turn_separator: chat_template, but the tokenizer has no chat template; {REMEDY}")
    options: dict[str, Any] = {} if thinking is None else {"enable_thinking": thinking}
    messages: list[dict[str, Any]] = []
    for i, turn in enumerate(turns if reply is None else [*turns, reply]):
        plain = {"role": ROLES[(len(turns) - i) % 2], "content": turn}
        messages += turn.messages if isinstance(turn, ToolText) else [plain]
    if system is not None and (system or not isinstance(system, SystemText)):
        messages.insert(0, {"role": "system", "content": str(system)})
    if tools := tools_of(system):
        options["tools"] = tools
    try:
        with interrupted_after(RENDER_SECONDS):
            text = tokenizer.apply_chat_template(
                messages, add_generation_prompt=reply is None, tokenize=False, **options
            )
    except TimeLimit as error:
        raise UserError(
            f"turn_separator: the tokenizer's chat template does not end within {RENDER_SECONDS:g} seconds on "
            f"{len(messages)} messages; {REMEDY}"
        ) from error
    except Exception as error:  # a template is a program, and may fail in any way
        raise UserError(
            f"turn_separator: the tokenizer's chat template fails on {len(messages)} messages: "
            f"{type(error).__name__}: {error}; {REMEDY}"
        ) from error
    return str(text)
