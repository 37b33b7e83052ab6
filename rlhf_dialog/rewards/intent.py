"""Intent: does a frozen classifier find in the response the act of the reference, or one that the prompt lets expect?"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.learned_half import learned_half
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards.base import ACTS, ARGS, BaseReward, choice, walk, whole

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

Ids = dict[str, list[int]]
INPUTS = ("pair", "concat")
KEY = f"{ARGS}.intent_model"
SCORES = ("match", "probability", "expected")
PRECISIONS = ("auto", "fp32", "bf16")
ROUND_TO = 8  # tokens; oneDNN makes a plan for each length, so there should be few
ACT, NEXT_ACT = "act", "next_act"  # `rlhf_dialog_target` in the config.json of a classifier; without it, ACT
# their names among the frozen models of a reward
CLASSIFIER, NEXT_ACT_CLASSIFIER = "act classifier", "next-act classifier"


@RewardFactory.register("Intent")
class Intent(BaseReward):
    """How well the act that the classifier finds in the response fits, from 0 to 1.

    `intent_score`: `match` is 1.0 when the classifier's class is the reference's act - 1, else 0.0; `probability` is the
    classifier's probability of that class; `expected` needs no reference: the sum over the acts a of
    q(a | prompt) p(a | response), where p is the classifier and q is `act_model`, one that was trained with `target: next_act`.

    `intent_model`: the folder or Hub name of a sequence classifier with 4 classes; only safetensors are read unless
    `allow_pickle_weights`, and code from the model's folder is never run. `intent_input`: how the last turn of the
    prompt and the response become the classifier's input: `pair` = tokenizer(last_turn, response), `concat` =
    last_turn + " " + response; by default the value of `rlhf_dialog_input` in its config.json, else concat. Of an input
    that is too long, the start of last_turn is cut off. `precision`: `fp32`, `bf16`, or `auto` (bf16 where it is faster).
    Raises UserError for a classifier that cannot be found, loaded or used.
    """

    needs: tuple[str, ...] = ("act",)
    name = "intent"
    model_args: ClassVar = {"intent_model": CLASSIFIER, "act_model": NEXT_ACT_CLASSIFIER}
    uses_device = True
    key, target = KEY, ACT

    def __init__(
        self,
        intent_model: str,
        intent_input: str | None = None,
        batch_size: int | None = None,
        allow_pickle_weights: bool = False,
        precision: str = "auto",
        intent_score: str = "match",
        act_model: str | None = None,
    ):
        if (choice("intent_score", intent_score, SCORES) == "expected") != bool(act_model):
            raise UserError(
                f"{ARGS}.act_model: {act_model!r} with intent_score: {intent_score}; expected alone needs the folder of a "
                "classifier that was trained with target: next_act"
            )
        if intent_input is not None:
            choice("intent_input", intent_input, INPUTS)
        from rlhf_dialog.models.pretrained import readable

        self.batch_size = None if batch_size is None else whole("batch_size", batch_size)
        self.precision = choice("precision", precision, PRECISIONS)
        path = str(intent_model)
        self.tokenizer, self.model = load_classifier(path, allow_pickle_weights, self.key)
        found = getattr(self.model.config, "rlhf_dialog_target", ACT)
        if found != self.target:
            raise UserError(
                f"{self.key}: '{path}' was trained with target: {found}, but a classifier of target: {self.target} is needed"
            )
        self.learned_half = learned_half(path)
        self.input = intent_input or getattr(self.model.config, "rlhf_dialog_input", "concat")
        if self.input not in INPUTS:
            raise UserError(
                f"{self.key}: config.json of {intent_model} has rlhf_dialog_input {self.input!r}; set {ARGS}.intent_input to one "
                f"of {', '.join(INPUTS)}"
            )
        self.max_length = max_input_length(self.tokenizer, self.model)
        with readable(path, self.key, "a classifier"):  # do the files of the folder fit together?
            self.predict([Dialogue(["Hello ."], "Hi ."), Dialogue(["Hello ."], "Hi ! " * self.max_length)])
        self.score, self.next_act = intent_score, None
        if act_model:
            self.next_act = NextAct(str(act_model), None, batch_size, allow_pickle_weights, precision)
            self.needs = ()

    def __call__(self, dialogues: list[Dialogue]) -> list[float]:
        """The score of each dialogue. Raises UserError when one has no act, except for `expected`."""
        if self.next_act is not None:
            expected = self.next_act.logits(dialogues).softmax(-1) * self.logits(dialogues).softmax(-1)
            return expected.sum(-1).tolist()
        self.check_prompts(dialogues)
        wanted = [(dialogue.act or 0) - 1 for dialogue in dialogues]
        if self.score == "probability":
            rows = self.logits(dialogues).softmax(-1).tolist()
            return [row[act] for act, row in zip(wanted, rows, strict=True)]
        return [float(predicted == act) for act, predicted in zip(wanted, self.predict(dialogues), strict=True)]

    def predict(self, dialogues: list[Dialogue]) -> list[int]:
        """The classifier's class (0 inform, 1 question, 2 directive, 3 commissive) for each dialogue."""
        return self.logits(dialogues).argmax(-1).tolist()

    def logits(self, dialogues: list[Dialogue]) -> "Tensor":
        """The classifier's logits (N, 4), in the order of the classes."""
        with self.at_work():
            return class_logits(self.model, self.tokenizer, self.encode(dialogues), self.batch_size, self.precision)

    def encode(self, dialogues: list[Dialogue]) -> list[Ids]:
        """The classifier's unpadded input for each dialogue, at most `max_length` tokens."""
        if not dialogues:
            return []
        last_turns = ["".join(dialogue.prompt_turns[-1:]) for dialogue in dialogues]
        responses = [dialogue.response for dialogue in dialogues]
        inputs = self._join(last_turns, responses, verbose=False)
        for i, encoded in enumerate(inputs):
            if len(encoded["input_ids"]) > self.max_length:
                inputs[i] = self._shorten(last_turns[i], responses[i])
        return inputs

    def _join(self, last_turns: list[str], responses: list[str], **options: Any) -> list[Ids]:
        # lists, because tokenizer("a", "") forgets that there is a second text, but tokenizer(["a"], [""]) does not
        if self.input == "pair":
            encoded = self.tokenizer(last_turns, responses, **options)
        else:
            joined = [f"{last_turn} {response}" for last_turn, response in zip(last_turns, responses, strict=True)]
            encoded = self.tokenizer(joined, **options)
        return [{key: column[i] for key, column in encoded.items()} for i in range(len(responses))]

    def _shorten(self, last_turn: str, response: str) -> Ids:
        """Cut last_turn from the left; a response that is too long by itself is cut on the right, without last_turn."""
        pair = self.input == "pair"
        tail = response if pair else f" {response}"
        response_ids = self.tokenizer(tail, add_special_tokens=False, verbose=False)["input_ids"]
        num_special = self.tokenizer.num_special_tokens_to_add(pair=pair)
        if len(response_ids) + num_special < self.max_length:
            self.tokenizer.truncation_side = "left"
            cut = "only_first"
        else:
            self.tokenizer.truncation_side = "right"
            last_turn = ""
            cut = "only_second" if pair else "only_first"
        return self._join([last_turn], [response], truncation=cut, max_length=self.max_length)[0]

    def in_float32(self) -> Self:
        self.precision = "fp32"
        return self

    def move_to(self, device: str) -> Self:
        """Move the classifier; on a GPU that runs it in bf16, its linear layers keep the 16 bits that its checkpoint has."""
        from rlhf_dialog.models.precision import narrow

        if device.startswith("cuda") and uses_bf16(self.precision, "cuda"):
            for model in self.frozen_models().values():
                narrow(model)
        return super().move_to(device)

    def frozen_models(self) -> dict[str, Any]:
        return {CLASSIFIER: self.model} | ({NEXT_ACT_CLASSIFIER: self.next_act.model} if self.next_act else {})


class NextAct(Intent):
    """A classifier of the act of the next turn, from the last two turns of the prompt alone; the response is not read."""

    key, target = f"{ARGS}.act_model", NEXT_ACT

    def encode(self, dialogues: list[Dialogue]) -> list[Ids]:
        """As `Intent.encode`, of the turn before the last and the last turn; the first is empty in a prompt of one turn."""
        return super().encode(
            [
                replace(dialogue, prompt_turns=dialogue.prompt_turns[:-1], response="".join(dialogue.prompt_turns[-1:]))
                for dialogue in dialogues
            ]
        )


def act_classifier(reward: BaseReward | None) -> Intent | None:
    """The first Intent in a reward, at any depth; None without."""
    return next((one for one in walk(reward) if isinstance(one, Intent)), None) if reward else None


def max_input_length(tokenizer: Any, model: Any) -> int:
    """Tokens that the tokenizer and the model's positions allow; RoBERTa counts positions from pad_token_id + 1."""
    limits = [tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", None)]
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            limits.append(module.num_embeddings - module.padding_idx - 1)
    return min(int(limit) for limit in limits if limit is not None and limit > 0)


def load_classifier(path: str, allow_pickle_weights: bool, key: str) -> tuple[Any, "PreTrainedModel"]:
    """Tokenizer and frozen classifier in fp32, from a folder or the Hub. Raises UserError, see Intent."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from rlhf_dialog.models.cpu_linear import use_onednn
    from rlhf_dialog.models.pretrained import load_pretrained, readable

    tokenizer = load_pretrained(AutoTokenizer, path, key, trust_remote_code=False)
    model = load_pretrained(
        AutoModelForSequenceClassification,
        path,
        key,
        trust_remote_code=False,
        use_safetensors=None if allow_pickle_weights else True,
        dtype="float32",
    )
    with readable(path, key, "a classifier"):
        if (found := model.config.num_labels) != len(ACTS):
            raise UserError(
                f"{key}: '{path}' has {found} classes; it needs 4, one per act ({', '.join(ACTS.values())})"
            )
        check_tokenizer(path, key, tokenizer, model)
        if tokenizer.pad_token is None:
            what = "has no pad token, which is needed to batch responses; set one in its folder"
            raise UserError(f"{key}: the tokenizer of '{path}' {what}")
        use_onednn(model)
    return tokenizer, model.eval().requires_grad_(False)


def class_logits(model: Any, tokenizer: Any, inputs: list[Ids], batch_size: int | None, precision: str) -> "Tensor":
    """As `logits_in_batches`, padded by the tokenizer."""

    def pad(rows: list[Ids]) -> Mapping[str, "Tensor"]:
        multiple = ROUND_TO if len(rows[-1]["input_ids"]) + ROUND_TO <= tokenizer.model_max_length else None
        return tokenizer.pad(rows, return_tensors="pt", pad_to_multiple_of=multiple)

    return logits_in_batches(model, inputs, pad, batch_size, uses_bf16(precision, model.device.type))


def logits_in_batches(
    model: Any,
    inputs: list[Ids],
    pad: Callable[[list[Ids]], Mapping[str, "Tensor"]],
    batch_size: int | None,
    bf16: bool,
) -> "Tensor":
    """Logits (N, labels) in float32 for N tokenised, unpadded texts, in batches of `batch_size` texts of similar length.

    `batch_size` None: 8 on a CPU, where a small batch has less padding and is not slower, 64 on a GPU. `pad` makes tensors of
    the rows of a batch, the longest of which is the last.
    """
    import torch

    size = batch_size or (8 if model.device.type == "cpu" else 64)
    logits = torch.zeros(len(inputs), model.config.num_labels)
    order = sorted(range(len(inputs)), key=lambda i: len(inputs[i]["input_ids"]))
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        batch = {name: ids.to(model.device) for name, ids in pad([inputs[i] for i in rows]).items()}
        with torch.inference_mode(), torch.autocast(model.device.type, torch.bfloat16, enabled=bf16):
            logits[rows] = model(**batch).logits.float().cpu()
    return logits


def uses_bf16(precision: str, device: str) -> bool:
    """Whether a classifier of this `precision` computes in bfloat16 on a device of the type `device`."""
    return precision == "bf16" or (precision == "auto" and bf16_is_faster(device))


@functools.cache
def bf16_is_faster(device: str) -> bool:
    """Whether matrix products are several times faster in bfloat16: on a GPU or CPU with hardware support for it."""
    from rlhf_dialog.models.device import cpu_bfloat16
    from rlhf_dialog.models.precision import gpu_has_bf16

    return gpu_has_bf16() if device == "cuda" else bool(cpu_bfloat16())


def check_tokenizer(path: str, key: str, tokenizer: Any, model: Any) -> None:
    """Raises UserError when the tokenizer belongs to another model."""
    from rlhf_dialog.models.pretrained import num_ids

    if num_ids(tokenizer) > (rows := model.get_input_embeddings().num_embeddings):
        raise UserError(
            f"{key}: the tokenizer of '{path}' has {num_ids(tokenizer)} tokens, but the model's embedding only {rows} rows: the "
            "tokenizer belongs to another model"
        )
