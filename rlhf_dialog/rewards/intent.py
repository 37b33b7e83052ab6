"""Intent: does a frozen classifier find in the response the act of the reference, or one that the prompt lets expect?"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.learned_half import learned_half
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards.arguments import ARGS, choice, whole
from rlhf_dialog.rewards.base import ACTS, BaseReward, acts, walk
from rlhf_dialog.rewards.classifier import PRECISIONS, check_weights, class_logits, uses_bf16

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

INPUTS = ("pair", "concat")
KEY = f"{ARGS}.intent_model"
SCORES = ("match", "probability", "expected")
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
        if choice("intent_score", intent_score, SCORES) == "expected" and not act_model:
            raise UserError(
                f"{ARGS}.act_model is missing: intent_score: expected needs the folder of a classifier that was trained with "
                "target: next_act"
            )
        if act_model and intent_score != "expected":
            raise UserError(
                f"{ARGS}.act_model: intent_score: {intent_score} does not use it; leave it out, or set expected"
            )
        if intent_input is not None:
            choice("intent_input", intent_input, INPUTS)
        self.batch_size = None if batch_size is None else whole("batch_size", batch_size)
        self.precision = choice("precision", precision, PRECISIONS)
        path = str(intent_model)
        self.tokenizer, self.model = load_classifier(path, allow_pickle_weights, self.key)
        self._check_target(path)
        self.learned_half = learned_half(path)
        self.input = intent_input or getattr(self.model.config, "rlhf_dialog_input", "concat")
        if self.input not in INPUTS:
            raise UserError(
                f"{self.key}: config.json of {intent_model} has rlhf_dialog_input {self.input!r}; set {ARGS}.intent_input to one "
                f"of {', '.join(INPUTS)}"
            )
        self.max_length = max_input_length(self.tokenizer, self.model)
        self._try(path)
        self.score, self.next_act = intent_score, None
        if act_model:
            self.next_act = NextAct(str(act_model), None, batch_size, allow_pickle_weights, precision)
            ours, theirs = labels(self.model), labels(self.next_act.model)
            if ours and theirs and ours != theirs:
                raise UserError(
                    f"{ARGS}.act_model: the labels of '{act_model}' are {', '.join(theirs)}, but those of "
                    f"intent_model '{path}' are {', '.join(ours)}; use classifiers of the same acts"
                )
            self.needs = ()

    def _check_target(self, path: str) -> None:
        """Raises UserError for a classifier that has learned to predict something else."""
        found = getattr(self.model.config, "rlhf_dialog_target", ACT)
        if found != self.target:
            raise UserError(
                f"{self.key}: '{path}' was trained with target: {found}, but a classifier of target: {self.target} is needed"
            )

    def _try(self, path: str) -> None:
        """Classify a short and a long text. Raises UserError when the files of the folder do not fit together."""
        from rlhf_dialog.models.pretrained import readable

        if self.max_length <= (num_special := self.tokenizer.num_special_tokens_to_add(pair=self.input == "pair")):
            raise UserError(
                f"{self.key}: '{path}' reads at most {self.max_length} tokens, of which {num_special} are special; correct "
                "model_max_length in its tokenizer_config.json"
            )
        with readable(path, self.key, "a classifier"):
            self.predict([Dialogue(["Hello ."], "Hi ."), Dialogue(["Hello ."], "Hi ! " * self.max_length)])

    def __call__(self, dialogues: list[Dialogue]) -> list[float]:
        """The score of each dialogue. Raises UserError when one has no act, except for `expected`."""
        if self.next_act is not None:
            with self.at_work():
                expected = self.next_act.logits(dialogues).softmax(-1) * self.logits(dialogues).softmax(-1)
            return expected.sum(-1).tolist()
        wanted = acts(dialogues, self.name)
        if self.score == "probability":
            rows = zip(wanted, self.logits(dialogues).softmax(-1).tolist(), strict=True)
            return [row[act - 1] for act, row in rows]
        return [float(predicted == act - 1) for act, predicted in zip(wanted, self.predict(dialogues), strict=True)]

    def predict(self, dialogues: list[Dialogue]) -> list[int]:
        """The classifier's class (0 inform, 1 question, 2 directive, 3 commissive) for each dialogue."""
        return self.logits(dialogues).argmax(-1).tolist()

    def logits(self, dialogues: list[Dialogue]) -> "Tensor":
        """The classifier's logits (N, 4), in the order of the classes."""
        with self.at_work():
            return class_logits(self.model, self.tokenizer, self.encode(dialogues), self.batch_size, self.precision)

    def encode(self, dialogues: list[Dialogue]) -> list[dict[str, list[int]]]:
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

    def _join(self, last_turns: list[str], responses: list[str], **options: Any) -> list[dict[str, list[int]]]:
        # lists, because tokenizer("a", "") forgets that there is a second text, but tokenizer(["a"], [""]) does not
        if self.input == "pair":
            encoded = self.tokenizer(last_turns, responses, **options)
        else:
            joined = [f"{last_turn} {response}" for last_turn, response in zip(last_turns, responses, strict=True)]
            encoded = self.tokenizer(joined, **options)
        return [{key: column[i] for key, column in encoded.items()} for i in range(len(responses))]

    def _shorten(self, last_turn: str, response: str) -> dict[str, list[int]]:
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

    def move_to(self, device: str) -> Self:
        """Move the classifier; on a GPU that runs it in bf16, its linear layers keep the 16 bits that its checkpoint has."""
        from rlhf_dialog.models.precision import narrow

        if device.startswith("cuda") and uses_bf16(self.precision, "cuda"):
            for model in self.frozen_models().values():
                narrow(model)
        return super().move_to(device)

    def frozen_models(self) -> dict[str, Any]:
        return {CLASSIFIER: self.model} | ({NEXT_ACT_CLASSIFIER: self.next_act.model} if self.next_act else {})

    @classmethod
    def model_paths(cls, args: dict[str, Any]) -> dict[str, str]:
        keys = {CLASSIFIER: "intent_model", NEXT_ACT_CLASSIFIER: "act_model"}
        return {name: args[key] for name, key in keys.items() if args.get(key)}


class NextAct(Intent):
    """A classifier of the act of the next turn, from the last two turns of the prompt alone; the response is not read."""

    key, target = f"{ARGS}.act_model", NEXT_ACT

    def encode(self, dialogues: list[Dialogue]) -> list[dict[str, list[int]]]:
        """As `Intent.encode`, of the turn before the last and the last turn; the first is empty in a prompt of one turn."""
        return super().encode(
            [
                replace(dialogue, prompt_turns=dialogue.prompt_turns[:-1], response="".join(dialogue.prompt_turns[-1:]))
                for dialogue in dialogues
            ]
        )


def labels(model: Any) -> list[str]:
    """The names of a classifier's classes, in lower case; empty where it has only transformers' `LABEL_0` and so on."""
    names = [str(name).lower() for _, name in sorted(model.config.id2label.items())]
    return [] if names[0].startswith("label_") else names


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
    model, report = load_pretrained(
        AutoModelForSequenceClassification,
        path,
        key,
        trust_remote_code=False,
        use_safetensors=None if allow_pickle_weights else True,
        dtype="float32",
        output_loading_info=True,
    )
    with readable(path, key, "a classifier"):
        if (found := model.config.num_labels) != len(ACTS):
            raise UserError(
                f"{key}: '{path}' has {found} classes; it needs 4, one per act ({', '.join(ACTS.values())})"
            )
        check_weights(path, key, tokenizer, model, report["missing_keys"], "a classifier")
        if tokenizer.pad_token is None:
            what = "has no pad token, which is needed to batch responses; set one in its folder"
            raise UserError(f"{key}: the tokenizer of '{path}' {what}")
        use_onednn(model)
    return tokenizer, model.eval().requires_grad_(False)
