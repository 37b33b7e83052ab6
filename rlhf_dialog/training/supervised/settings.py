"""The keys of the supervised stages. Nothing here loads torch: the help and the mistakes of a YAML need none of it."""

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from rlhf_dialog.config.schema import MemoryKeys
from rlhf_dialog.config.settings import (
    ColumnsKey,
    ComputeKeys,
    DataKeys,
    DecayKey,
    OverlapKey,
    PickleKey,
    ReplyKeys,
    SeedKey,
    SplitKey,
    ThreadsKey,
    TrustCodeKey,
)
from rlhf_dialog.data.learned_half import Half


class SupervisedKeys(ComputeKeys):
    """Training"""

    epochs: float = Field(1.0, gt=0, description="passes over the training data; may be a fraction")
    max_steps: int | None = Field(None, ge=1, description="optimizer steps instead of epochs")
    learning_rate: float = Field(5e-5, gt=0, description="peak; a linear warm-up, then a cosine to 0")
    warmup_ratio: float = Field(0.05, ge=0, lt=1, description="share of the steps used for the warm-up")
    weight_decay: DecayKey = 0.01
    batch_size: int = Field(32, ge=1, description="examples per optimizer step")
    seed: SeedKey = Field(0, description="random seed of weights, order of the data and dropout")
    pytorch_threads: ThreadsKey = None
    checkpoint_minutes: float = Field(
        5.0,
        gt=0,
        description="minutes between checkpoints, from which an interrupted training resumes exactly (a relevance model: one "
        "after each member)",
    )
    resume: Literal["auto", "never"] = Field(
        "auto", description="auto: resume an interrupted training with the same settings and data; never: start again"
    )


class DialogueKeys(SupervisedKeys):
    """Dialogues"""

    data_path: str = Field(description="data file, folder, zip or Hub name; docs/DATA.md shows every format")
    columns: ColumnsKey = Field(default_factory=dict)
    split: SplitKey = Field(default_factory=dict)


class HalfKeys(DialogueKeys, ReplyKeys):
    """Training dialogues and report"""

    drop_overlap: OverlapKey = False
    half: Half = Field(
        "all",
        description="training dialogues to use: all of them, the half for the reward, or the half for the judge; no dialogue "
        "of one half nearly repeats a dialogue of the other",
    )
    evaluate_test: bool = Field(False, description="report the test split too; do this once, at the end")


class SFTConfig(DialogueKeys, DataKeys, MemoryKeys):
    """Supervised fine-tuning"""

    output: str = Field(description="folder to write: model, tokenizer, training.json; refused when it holds something")
    model_path: str | None = Field(None, description="causal LM to start from: folder or Hub name; null: from scratch")
    tokenizer_path: str | None = Field(
        None, description="tokenizer: folder or Hub name; default: model_path, and from scratch a new one"
    )
    trust_remote_code: TrustCodeKey = False
    allow_pickle_weights: PickleKey = False
    vocab_size: int = Field(1536, ge=300, description="from scratch: tokens of the new tokenizer")
    tokenizer_texts: Literal["replies", "dialogues"] = Field(
        "replies",
        description="from scratch: texts that the new tokenizer is trained on; dialogues: prompts and replies",
    )
    architecture: Literal["gpt2", "llama"] = Field(
        "gpt2", description="from scratch: GPT-2 or Llama; Llama learns more from little data"
    )
    n_layer: int = Field(4, ge=1, description="from scratch: layers")
    n_head: int = Field(4, ge=1, description="from scratch: attention heads")
    n_embd: int = Field(256, ge=8, description="from scratch: width, a multiple of n_head")
    n_positions: int = Field(256, ge=8, description="from scratch: tokens of the longest prompt with its reply")
    dropout: float = Field(0.0, ge=0, lt=1, description="from scratch: dropout during this training")
    learn_eos: bool = Field(
        False,
        description="also learn the end-of-text token after the separator that ends a reply; use it only where all prompts "
        "have the same number of turns (min_context_size = context_size), else nothing distinguishes this separator from "
        "those inside a prompt",
    )
    max_train_prompts: int | None = Field(
        None, ge=1, description="largest number of training prompts, drawn at random; default: all"
    )
    max_eval_prompts: int = Field(1000, ge=1, description="largest number of validation prompts, drawn at random")
    evals: int = Field(4, ge=1, description="number of validations during the training, evenly spaced")
    patience: int | None = Field(
        None,
        ge=1,
        description="number of validations without a lower loss after which to stop, keeping the best weights",
    )
    per_device_microbatch_size: int | None = Field(
        None,
        ge=1,
        description="examples per forward pass; changes memory and speed, not the result; default: batch_size",
    )

    @model_validator(mode="after")
    def _together(self) -> "SFTConfig":
        if self.batch_size % (self.per_device_microbatch_size or self.batch_size):
            raise ValueError(
                f"per_device_microbatch_size: {self.per_device_microbatch_size} does not divide batch_size "
                f"{self.batch_size}; use one that does"
            )
        if self.use_lora and self.model_path is None:
            raise ValueError("use_lora: a model from scratch has nothing to adapt; set model_path, or use_lora: false")
        return self


class IntentConfig(HalfKeys):
    """Intent classifier"""

    output: str = Field(description="folder to write: model, tokenizer, report.json; refused when it holds something")
    target: Literal["act", "next_act"] = Field(
        "act",
        description="what to predict: act, that of a reply, from the turn before and the reply; next_act, that of the reply to "
        "come, from the two turns before it alone (act_model of the reward)",
    )
    model_path: str | None = Field(None, description="encoder to start from: folder or Hub name; null: from scratch")
    tokenizer_path: str | None = Field(None, description="tokenizer of model_path; default: model_path")
    trust_remote_code: TrustCodeKey = False
    allow_pickle_weights: PickleKey = False
    max_length: int = Field(128, ge=16, description="tokens; of a longer pair, the start of its first turn is cut off")
    vocab_size: int = Field(4000, ge=200, description="from scratch: tokens of the new lower-case tokenizer")
    num_layers: int = Field(2, ge=1, description="from scratch: layers of the BERT")
    num_heads: int = Field(2, ge=1, description="from scratch: attention heads")
    hidden_size: int = Field(128, ge=8, description="from scratch: width, a multiple of num_heads")
    learning_rate: float = Field(5e-4, gt=0, description="peak; 2e-5 suits a pretrained encoder")
    max_report_pairs: int = Field(
        2000, ge=1, description="largest number of pairs of each split in the report, drawn by the seed"
    )


class PreferenceConfig(SupervisedKeys):
    """Preference model"""

    data_path: str = Field(
        description="pairs: file, folder, zip or Hub name with chosen, rejected and usually prompt (docs/REWARDS.md)"
    )
    columns: ColumnsKey = Field(default_factory=dict)
    split: SplitKey = Field(default_factory=dict)
    preference: dict[str, Any] | Literal["auto"] | None = Field(
        "auto",
        description="which side is the better one: {column: NAME, chosen_is: VALUE} or {column: NAME, above: NUMBER}; null: the "
        "chosen side; auto: null, but refused where `columns` names both sides and a column such as `winner` may say it",
    )
    output: str = Field(description="folder to write: model, tokenizer, report.json; refused when it holds something")
    model_path: str = Field(description="model to start from: a fine-tuned causal LM or an encoder; folder or Hub name")
    turn_separator: str = Field(
        "auto",
        min_length=1,
        description="text after each turn, as in the model's own training; chat_template: the tokenizer's chat template; auto: "
        "the separator token of an encoder's tokenizer; of a causal LM, what its folder says (rlhf_dialog.json), else its chat "
        "template where it has one, else <EOU>",
    )
    max_length: int = Field(
        256,
        ge=8,
        le=10**6,
        description="tokens of prompt and reply; drops the oldest turns first, then tokens from the left",
    )
    held_out: float = Field(
        0.1, gt=0, lt=1, description="share of the prompts held out for the report, if the data has no validation split"
    )
    num_samples: int = Field(
        200,
        ge=0,
        le=10**6,
        description="replies that model_path, if it is a causal LM, generates for held-out prompts; their scores give the "
        "stored mean and deviation; 0: use the held-out pairs",
    )
    max_new_tokens: int = Field(32, ge=1, le=10**6, description="tokens of a sampled reply")
    max_train_pairs: int | None = Field(None, ge=1, description="largest number of training pairs, drawn by the seed")
    max_report_pairs: int = Field(500, ge=1, description="largest number of pairs in the report, drawn by the seed")
    learning_rate: float = Field(1e-5, gt=0, description="peak; a small model needs more, such as 5e-4")

    @field_validator("preference", mode="before")
    @classmethod
    def _one_rule(cls, value: Any) -> Any:
        """A column and one rule, `auto` or null."""
        if value in ("auto", None):
            return value
        rule = value if isinstance(value, dict) else {}
        types = {"column": str, "chosen_is": str | int | float, "above": int | float}
        is_typed = all(isinstance(one, types.get(key, ())) for key, one in rule.items())
        if {*rule} not in ({"column", "chosen_is"}, {"column", "above"}) or not is_typed or rule.get("above") is True:
            raise ValueError("{column: NAME, chosen_is: VALUE}, {column: NAME, above: NUMBER}, null or auto")
        return value


class RelevanceConfig(HalfKeys):
    """Relevance model"""

    output: str = Field(
        description="folder to write: model, tokenizer, bank of prompts (text of your data), report.json; refused when it "
        "holds something"
    )
    architecture: Literal["bag", "convolution"] = Field(
        "bag",
        description="bag: the words of a turn (a minute); convolution: three words at a time (minutes)",
    )
    members: int = Field(
        3, ge=1, le=64, description="networks with different seeds; the reward is the mean of their margins"
    )
    context_size: int = Field(5, ge=1, le=1000, description="turns before the reply that the model reads")
    min_context_size: int = Field(
        1, ge=1, description="fewest turns of a prompt to learn from and to put into the bank; use that of the PPO run"
    )
    bank_size: int = Field(512, ge=1, description="training prompts that the reward compares a reply's own prompt with")
    copy_weight: float = Field(
        30.0,
        ge=1,
        description="weight of a repeated turn as a wrong reply: the last turn, the one before it, and an older one",
    )
    salad_weight: float = Field(
        0.0,
        ge=0,
        description="weight of word salad as a wrong reply: the true reply shuffled, and a second text (words exchanged, the "
        "last two turns mixed, or the rarest words of the context); 0: none. The bag ignores the order of words",
    )
    max_turn_tokens: int = Field(48, ge=4, description="tokens of a turn; the end of a longer one is cut off")
    vocab_size: int = Field(8000, ge=200, description="tokens of the new lower-case tokenizer")
    hidden_size: int = Field(128, ge=8, description="width")
    dropout: float = Field(0.3, ge=0, lt=1, description="share of the activations dropped during training")
    word_dropout: float = Field(0.2, ge=0, lt=1, description="share of the words that are dropped during training")
    batch_size: int = Field(
        128, ge=2, description="pairs per optimizer step; each reply is a wrong one for the other prompts"
    )
    learning_rate: float = Field(5e-3, gt=0, description="peak")
    epochs: float = Field(3.0, gt=0, description="passes over the training data; may be a fraction")
