"""A model with one number as its output, from what this package, TRL or OpenRLHF wrote, and how it reads a dialogue.

Each model has its own tokenizer, and the form that it was trained on. N dialogues, L tokens of the longest one in a batch.

| form | the text |
|---|---|
| `dialogue` | the prompt and the reply as the policy of `turn_separator` reads and writes them; every turn ends with it |
| `chat_template` | the whole dialogue in the tokenizer's chat template, as TRL trains on messages |
| `text` | all turns joined by `turn_separator`, and the end-of-text token, as TRL trains on texts |
| `pair` | tokenizer(the turns of the prompt, the reply), as many encoders were trained |

OpenRLHF closes a text or a template with a space and the end-of-text token, in place of line ends (`closed`).
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from rlhf_dialog.data import chat_template
from rlhf_dialog.data.dialogue import CHAT_TEMPLATE, Dialogue, remove_marks, render_prompt, render_target
from rlhf_dialog.data.prompt_ids import PROBE, PROBE_REPLY, count_shared, longest_first
from rlhf_dialog.errors import UserError
from rlhf_dialog.models.cpu_linear import use_onednn
from rlhf_dialog.models.loading import read_tokenizer
from rlhf_dialog.models.pretrained import load_pretrained, readable
from rlhf_dialog.rewards.base import ARGS
from rlhf_dialog.rewards.intent import ROUND_TO, Ids, check_tokenizer, logits_in_batches, max_input_length, uses_bf16

DIALOGUE, TEXT, PAIR = "dialogue", "text", "pair"
FORMS = (DIALOGUE, CHAT_TEMPLATE, TEXT, PAIR)
SEPARATORS = {DIALOGUE: "<EOU>", TEXT: "\n", PAIR: "\n", CHAT_TEMPLATE: CHAT_TEMPLATE}  # by default
HEAD = "value_head_prefix"  # in a config.json that OpenRLHF wrote: the name of the linear layer for the score
PROBES = [Dialogue(["Hello ."], "Hi ."), Dialogue(["Hello .", "Hi .", "How are you ?"], "Fine , and you ?")]


@dataclass(frozen=True)
class ScalarOptions:
    """The arguments of RewardModel of these names; None: what the folder or the device says."""

    batch_size: int | None = None
    precision: str = "auto"
    input_form: str | None = None
    turn_separator: str | None = None
    max_length: int | None = None


class ScalarModel:
    """A frozen model, its tokenizer, and how it reads a dialogue. `key`: the configuration key that named `path`.

    Raises UserError when it cannot be found or loaded, has more than one label, or does not fit its tokenizer.
    """

    def __init__(self, path: str, key: str, options: ScalarOptions):
        self.path, self.key, self.options = path, key, options
        self.tokenizer, self.model = load_scalar_model(path, key)
        config = self.model.config
        with readable(path, key, "a reward model"):
            form = options.input_form or trained_form(self.tokenizer, config)
            if form not in FORMS:
                stored = f"{key}: rlhf_dialog_input in the config.json of '{path}'"
                place = f"{ARGS}.input_form" if options.input_form else stored
                raise UserError(f"{place}: {form!r} is not one of {', '.join(FORMS)}")
            choices = (options.turn_separator, getattr(config, "rlhf_dialog_separator", None), SEPARATORS[form])
            separator = str(next(choice for choice in choices if choice is not None))
            if not separator and form not in (TEXT, PAIR):
                what = "'' leaves nothing between turns, which is for input_form: text or pair"
                raise UserError(f"{ARGS}.turn_separator: {what}")
            limit = max_input_length(self.tokenizer, self.model)
            limit = min(limit, options.max_length or limit)
            # models of other programs leave thinking to the template
            thinking = None if getattr(config, "rlhf_dialog_input", None) is None else False
            self.input = RewardInput(self.tokenizer, form, separator, limit, is_openrlhf(config), thinking)
            sizes: Any = config.get_text_config()
            known = (sizes.pad_token_id, self.tokenizer.pad_token_id, self.tokenizer.eos_token_id)
            pad_id = next((i for i in known if i is not None), None)
            if pad_id is None:
                raise UserError(
                    f"{key}: '{path}' has no pad token, which marks the end of a text; set one in its folder"
                )
            self.pad_id = sizes.pad_token_id = int(pad_id)  # by which the model finds the end of a text
            found = self.outputs([*PROBES, Dialogue(["Hello ."], "Hi ! " * min(limit, 2000))])
            if not all(map(math.isfinite, found)):
                why = "its weights are damaged, or its training diverged"
                raise UserError(f"{key}: '{path}' gives {found} for three dialogues; {why}")

    def outputs(self, dialogues: list[Dialogue]) -> list[float]:
        """The output for each of the N dialogues, in their order; it does not depend on the others, up to rounding."""
        inputs = [self.input.encode(dialogue) for dialogue in dialogues]
        pad = partial(pad_right, pad_id=self.pad_id, max_length=self.input.max_length)
        bf16 = self.uses_bf16(self.model.device.type)
        return logits_in_batches(self.model, inputs, pad, self.options.batch_size, bf16).reshape(-1).tolist()

    def uses_bf16(self, device: str) -> bool:
        """Whether it computes in bfloat16 on this type of device; with `auto` not on a CPU, where scores would lose digits."""
        precision = self.options.precision
        return uses_bf16("fp32" if precision == "auto" and device == "cpu" else precision, device)

    def normalisation(self, normalize: bool | None) -> tuple[float, float]:
        """Mean and deviation from the config.json; 0 and 1 if `normalize` is False, or if it is None and there are none.

        Raises UserError when they are missing but `normalize` is True, or cannot be used.
        """
        stored = [getattr(self.model.config, name, None) for name in ("mean", "std")]
        if normalize is False or (normalize is None and stored == [None, None]):
            return 0.0, 1.0
        mean, std = (x if isinstance(x, int | float) else math.nan for x in stored)
        if not (math.isfinite(mean) and math.isfinite(std) and std > 0):
            raise UserError(
                f"{ARGS}.normalize: mean {stored[0]!r:.40} and std {stored[1]!r:.40} in the config.json of '{self.path}' are "
                "not a mean and a deviation above 0; correct them, or set false"
            )
        return float(mean), float(std)


def load_scalar_model(path: str, key: str) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    """Tokenizer and frozen model in fp32, from a folder or the Hub; safetensors only, no code. Raises as ScalarModel does."""
    config = load_pretrained(AutoConfig, path, key)
    if not is_openrlhf(config) and config.num_labels != 1:
        raise UserError(
            f"{key}: '{path}' has {config.num_labels} labels, but a reward model has one; give the folder of one that was "
            "trained on preferences"
        )
    tokenizer = read_tokenizer(path, key, as_saved=True)  # TRL trains on what an agent's template writes
    options: dict[str, Any] = {"num_labels": 1, "dtype": torch.float32}
    if is_openrlhf(config) and tokenizer.eos_token_id is None:
        what = "has no end-of-text token (eos_token), which ends its texts; set one"
        raise UserError(f"{key}: the tokenizer of '{path}' {what}")
    if (head := str(getattr(config, HEAD, "score"))) != "score":
        options["key_mapping"] = {rf"^{re.escape(head)}\.": "score."}
    model = load_pretrained(AutoModelForSequenceClassification, path, key, **options)
    with readable(path, key, "a reward model"):
        check_tokenizer(path, key, tokenizer, model)
        use_onednn(model)
        model.config.use_cache = False
        if is_openrlhf(config):
            other = 0 if tokenizer.eos_token_id else 1  # not the last token of a text, by which the model finds its end
            model.config.get_text_config().pad_token_id = other
    return tokenizer, model.eval().requires_grad_(False)


def is_openrlhf(config: Any) -> bool:
    """Whether OpenRLHF wrote the folder of this config.json."""
    return getattr(config, HEAD, None) is not None


def pad_right(rows: list[Ids], pad_id: int, max_length: int) -> dict[str, Tensor]:
    """`input_ids`, `attention_mask` and what else the rows have, each (N, L), with L rounded up to a multiple of 8."""
    lengths = [len(row["input_ids"]) for row in rows]
    width = min(-(-max(lengths) // ROUND_TO) * ROUND_TO, max(max_length, *lengths))
    tensors = {
        name: torch.tensor([row[name] + [fill] * (width - len(row[name])) for row in rows])
        for name, fill in (("input_ids", pad_id), ("token_type_ids", 0))
        if name in rows[0]
    }
    return tensors | {"attention_mask": torch.tensor([[1] * n + [0] * (width - n) for n in lengths])}


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
    return getattr(config, "rlhf_dialog_input", None) or (CHAT_TEMPLATE if tokenizer.chat_template else TEXT)
