"""Intent: does a frozen classifier find the same act in the response as in the reference?"""

from typing import TYPE_CHECKING, Any, Self

from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.learned_half import learned_half
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards.base import ACTS, BaseReward, acts, walk
from rlhf_dialog.rewards.classifier import check_precision, class_logits, uses_bf16

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

INPUTS = ("pair", "concat")
KEY = "reward_class.args.intent_model"
CLASSIFIER = "act classifier"  # its name among the frozen models of a reward


@RewardFactory.register("Intent")
class Intent(BaseReward):
    """1.0 when the classifier's class is the reference's act - 1, else 0.0.

    `intent_model`: the folder or Hub name of a sequence classifier with 4 classes; only safetensors are read unless
    `allow_pickle_weights`, and code from the model's folder is never run. `intent_input`: how the last turn of the
    prompt and the response become the classifier's input: `pair` = tokenizer(last_turn, response), `concat` =
    last_turn + " " + response; by default the value of `rlhf_dialog_input` in its config.json, else concat. Of an input
    that is too long, the start of last_turn is cut off. `precision`: `fp32`, `bf16`, or `auto` (bf16 where it is faster).
    Raises UserError for a classifier that cannot be found, loaded or used.
    """

    needs = ("act",)
    name = "intent"
    uses_device = True

    @classmethod
    def reaches_out(cls, args: dict[str, Any]) -> dict[str, str]:
        """`intent_model` if it is not on this machine, and `allow_pickle_weights`."""
        from rlhf_dialog.data.hub import is_local

        reasons, path = {}, str(args.get("intent_model"))
        if not is_local(path):
            reasons["args.intent_model"] = f"{path[:100]!r} is not on this machine, so the Hub would be asked"
        if args.get("allow_pickle_weights"):
            reasons["args.allow_pickle_weights"] = "reads pickled weights"
        return reasons

    def __init__(
        self,
        intent_model: str,
        intent_input: str | None = None,
        batch_size: int | None = None,
        allow_pickle_weights: bool = False,
        precision: str = "auto",
    ):
        if intent_input not in (None, *INPUTS):
            raise UserError(f"reward_class.args.intent_input: {intent_input!r} is not one of {', '.join(INPUTS)}")
        if batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1):
            raise UserError(f"reward_class.args.batch_size: {batch_size!r} must be a whole number, at least 1")
        path = str(intent_model)
        self.tokenizer, self.model = load_classifier(path, allow_pickle_weights)
        self.learned_half = learned_half(path)
        self.input = intent_input or getattr(self.model.config, "rlhf_dialog_input", "concat")
        if self.input not in INPUTS:
            raise UserError(
                f"{KEY}: config.json of {intent_model} has rlhf_dialog_input {self.input!r}, which is not one of "
                f"{', '.join(INPUTS)}; set reward_class.args.intent_input to one of them"
            )
        self.max_length = max_input_length(self.tokenizer, self.model)
        self.batch_size, self.precision = batch_size, check_precision(precision)
        self._try(path)

    def _try(self, path: str) -> None:
        """Classify a short and a long text. Raises UserError when the files of the folder do not fit together."""
        from rlhf_dialog.models.pretrained import readable

        if self.max_length <= (num_special := self.tokenizer.num_special_tokens_to_add(pair=self.input == "pair")):
            raise UserError(
                f"{KEY}: '{path}' reads at most {self.max_length} tokens, of which {num_special} are special; correct "
                "model_max_length in its tokenizer_config.json"
            )
        with readable(path, KEY, "a classifier"):
            self.predict([Dialogue(["Hello ."], "Hi ."), Dialogue(["Hello ."], "Hi ! " * self.max_length)])

    def __call__(self, dialogues: list[Dialogue]) -> list[float]:
        """1.0 or 0.0 for each dialogue. Raises UserError when one has no act."""
        pairs = zip(acts(dialogues, self.name), self.predict(dialogues), strict=True)
        return [float(predicted == act - 1) for act, predicted in pairs]

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
            narrow(self.model)
        return super().move_to(device)

    def frozen_models(self) -> dict[str, Any]:
        return {CLASSIFIER: self.model}

    @classmethod
    def model_paths(cls, args: dict[str, Any]) -> dict[str, str]:
        return {CLASSIFIER: args["intent_model"]} if args.get("intent_model") else {}


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


def load_classifier(path: str, allow_pickle_weights: bool = False) -> tuple[Any, "PreTrainedModel"]:
    """Tokenizer and frozen classifier in fp32, from a folder or the Hub. Raises UserError, see Intent."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from rlhf_dialog.models.cpu_linear import use_onednn
    from rlhf_dialog.models.pretrained import load_pretrained, readable

    tokenizer = load_pretrained(AutoTokenizer, path, KEY, trust_remote_code=False)
    model, report = load_pretrained(
        AutoModelForSequenceClassification,
        path,
        KEY,
        trust_remote_code=False,
        use_safetensors=None if allow_pickle_weights else True,
        dtype="float32",
        output_loading_info=True,
    )
    with readable(path, KEY, "a classifier"):
        check_classifier(path, tokenizer, model, report["missing_keys"])
        use_onednn(model)
    return tokenizer, model.eval().requires_grad_(False)


def check_classifier(path: str, tokenizer: Any, model: Any, missing: Any) -> None:
    """Raises UserError when the model is not a classifier of four acts, or the tokenizer belongs to another model."""
    if (found := model.config.num_labels) != len(ACTS):
        raise UserError(f"{KEY}: '{path}' has {found} classes; it needs 4, one per act ({', '.join(ACTS.values())})")
    if missing:
        names = ", ".join(sorted(missing)[:4])
        raise UserError(f"{KEY}: '{path}' has no weights for {names}: it was not trained as a classifier")
    from rlhf_dialog.models.pretrained import num_ids

    if num_ids(tokenizer) > (rows := model.get_input_embeddings().num_embeddings):
        raise UserError(
            f"{KEY}: the tokenizer of '{path}' has {num_ids(tokenizer)} tokens, but the classifier's embedding only {rows} "
            "rows: the tokenizer belongs to another model"
        )
    if tokenizer.pad_token is None:
        what = "has no pad token, which is needed to batch responses; set one in its folder"
        raise UserError(f"{KEY}: the tokenizer of '{path}' {what}")
