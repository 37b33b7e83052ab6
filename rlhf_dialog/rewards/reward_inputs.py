"""How a dialogue becomes the token ids that a reward model reads: the model's own tokenizer, and the form that it was trained on.

| form | the text |
|---|---|
| `dialogue` | the prompt and the reply as the policy of `turn_separator` reads and writes them; every turn ends with it |
| `chat_template` | the whole dialogue in the tokenizer's chat template, as TRL trains on messages |
| `text` | all turns joined by `turn_separator`, and the end-of-text token, as TRL trains on texts |
| `pair` | tokenizer(the turns of the prompt, the reply), as many encoders were trained |

OpenRLHF closes a text or a template with a space and the end-of-text token, in place of line ends (`closed`).
"""

from collections.abc import Callable, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from rlhf_dialog.data import chat_template
from rlhf_dialog.data.dialogue import CHAT_TEMPLATE, Dialogue, remove_marks, render_prompt, render_target
from rlhf_dialog.data.prompt_ids import PROBE, PROBE_REPLY, count_shared, longest_first
from rlhf_dialog.rewards.classifier import Ids

DIALOGUE, TEXT, PAIR = "dialogue", "text", "pair"
FORMS = (DIALOGUE, CHAT_TEMPLATE, TEXT, PAIR)
SEPARATORS = {DIALOGUE: "<EOU>", TEXT: "\n", PAIR: "\n", CHAT_TEMPLATE: CHAT_TEMPLATE}  # by default


class RewardInput:
    """Encodes dialogues for one tokenizer: everything up to the response, at most `max_length` tokens.

    Of an input that is too long, whole oldest turns are dropped first, then tokens from the left, behind the system message and
    the token that the tokenizer puts at the beginning. `text` and `pair` have no system message. Inside a turn a space replaces
    the separator and the special tokens of the tokenizer. `closed`: write texts and templates as OpenRLHF does. `thinking`: see
    `chat_template.render`. Raises UserError for a chat template that is missing or fails.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        form: str,
        separator: str,
        max_length: int,
        closed: bool = False,
        thinking: bool | None = False,
    ):
        self.tokenizer, self.form, self.separator, self.max_length = tokenizer, form, separator, max_length
        self.closed, self.thinking = closed, thinking
        first = tokenizer("a")["input_ids"][:1]
        self.prefix = first if first and first[0] in (tokenizer.bos_token_id, tokenizer.cls_token_id) else []
        self._user_must_begin = False
        written: Sequence[int] = ()
        if form == CHAT_TEMPLATE:
            written = self._encode(chat_template.render(tokenizer, [PROBE], PROBE_REPLY, thinking))
            self._user_must_begin = not chat_template.accepts(tokenizer, [PROBE_REPLY, PROBE])
            self._takes_system = chat_template.writes_system(tokenizer)
            self.prefix = written[:1] if written[:1] == [tokenizer.bos_token_id] else []
        marks = chat_template.control_tokens(tokenizer, written)
        self._marks = longest_first({separator, *marks}) if form == DIALOGUE else marks
        forms = {DIALOGUE: self._dialogue, CHAT_TEMPLATE: self._chat_template, TEXT: self._text, PAIR: self._pair}
        self._ids: Callable[[Sequence[str], str, str | None], Ids] = forms[form]

    def spoken(self, text: str) -> str:
        """A turn as the model sees it."""
        return remove_marks(text, self._marks)

    def encode(self, dialogue: Dialogue) -> Ids:
        """`input_ids`, and with `pair` the `token_type_ids` if the tokenizer gives them, unpadded."""
        turns = [*dialogue.prompt_turns, *(turn.text for turn in dialogue.earlier)]
        turns, reply = [self.spoken(turn) for turn in turns], self.spoken(dialogue.response)
        system = self.spoken(dialogue.system.strip()) if dialogue.system else None
        inputs: Ids = {}
        for start in range(max(len(turns), 1)):
            inputs = self._ids(turns[start:], reply, system)
            if len(inputs["input_ids"]) <= self.max_length:
                return inputs
        head = len(self.prefix)
        if system is not None:
            probes = (self._ids([probe], reply, system)["input_ids"] for probe in (PROBE, PROBE_REPLY))
            head = min(count_shared(*probes), self.max_length)
        cut = len(inputs["input_ids"]) - self.max_length + head
        return {name: ids[:head] + ids[cut:] for name, ids in inputs.items()}

    def _dialogue(self, turns: Sequence[str], reply: str, system: str | None) -> Ids:
        turns = turns if system is None else [system, *turns]
        prompt = self._encode(render_prompt(turns, self.separator)) if turns else []
        return {"input_ids": self.prefix + prompt + self._encode(render_target(reply, self.separator))}

    def _chat_template(self, turns: Sequence[str], reply: str, system: str | None) -> Ids:
        if system is not None and not self._takes_system:
            turns, system = chat_template.put_before_user(turns, system), None
        assistant_begins = len(turns) % 2 == 0
        kept = turns[1:] if turns and assistant_begins and self._user_must_begin else turns
        text = chat_template.render(self.tokenizer, kept, reply, self.thinking, system)
        return {"input_ids": self._encode(self._with_end(text) if self.closed else text)}

    def _text(self, turns: Sequence[str], reply: str, _: str | None) -> Ids:
        text = self.separator.join([*turns, reply])
        if self.closed:
            return {"input_ids": self._encode(self._with_end(text))}
        return {"input_ids": self.tokenizer(text + (self.tokenizer.eos_token or ""), verbose=False)["input_ids"]}

    def _with_end(self, text: str) -> str:
        text, end = text.rstrip("\n"), str(self.tokenizer.eos_token)
        return text if text.endswith(end) else f"{text} {end}"

    def _pair(self, turns: Sequence[str], reply: str, _: str | None) -> Ids:
        # lists, because tokenizer("a", "") forgets that there is a second text
        found = self.tokenizer([self.separator.join(turns)], [reply], verbose=False)
        return {name: found[name][0] for name in ("input_ids", "token_type_ids") if name in found}

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def reads_in_pairs(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the tokenizer is an encoder's, which puts a text between its own two tokens, such as `[CLS] a [SEP]`."""
    ids = tokenizer("a")["input_ids"]
    ends = tokenizer.cls_token_id, tokenizer.sep_token_id
    return None not in ends and (ids[0], ids[-1]) == ends


def trained_form(tokenizer: PreTrainedTokenizerBase, config: Any) -> str:
    """The form that the folder was trained on: its config.json says it; else messages, where there is a template; else text."""
    own = getattr(config, "rlhf_dialog_input", None)
    return own or (CHAT_TEMPLATE if tokenizer.chat_template else TEXT)
