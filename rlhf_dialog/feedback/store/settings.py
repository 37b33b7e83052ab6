"""The keys of a bot's config.yaml: how it learns from feedback, when a version is promoted, the limits of its page and API."""

import logging
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, field_validator, model_validator

from rlhf_dialog.config.loading import load_settings
from rlhf_dialog.config.settings import ColumnsKey, ComputeKeys, Settings

logger = logging.getLogger(__name__)
NO_EFFECT = dict.fromkeys(  # keys that older config.yaml files have
    (
        *("contradiction_confidence", "page_wrong_passwords", "page_password_seconds", "max_kl", "max_perplexity_rise"),
        *("method", "reward_members", "reward_learning_rate", "reward_epochs", "uncertainty_coef", "length_weight"),
        *("ppo_iterations", "ppo_responses", "ppo_minibatches", "ppo_learning_rate", "ppo_kl_coef"),
    ),
    "docs/FEEDBACK.md has the settings of today",
)
BYTES_A_CHAR = 8  # of a message in a request


class LossKeys(Settings):
    """Losses of a night"""

    beta: float = Field(
        1.0, gt=0, le=10**3, description="beta of KTO and DPO; larger values keep closer to the first version"
    )
    desirable_weight: float | None = Field(
        None, ge=0, le=10**3, description="KTO's weight of a liked answer; null: balance liked and disliked answers"
    )
    undesirable_weight: float | None = Field(
        None, ge=0, le=10**3, description="KTO's weight of a disliked answer; null: balance liked and disliked answers"
    )
    dpo_weight: float = Field(1.0, ge=0, le=10**3, description="weight of an edit or a choice relative to an answer")
    liked_weight: float = Field(
        4.0, ge=0, le=10**3, description="weight of the likelihood per token of what people liked, wrote or chose"
    )
    sft_data_path: str | None = Field(
        None, description="training dialogues of the first version, to limit forgetting: file, folder, zip or Hub name"
    )
    sft_columns: ColumnsKey = Field(default_factory=dict)
    sft_share: float = Field(0.2, ge=0, lt=1, description="share of each batch that comes from sft_data_path")
    replay_share: float = Field(0.5, ge=0, lt=1, description="largest share of older feedback in a night, by weight")


class OptimizerKeys(ComputeKeys):
    """Optimizer"""

    learning_rate: float | None = Field(
        None, gt=0, le=1, description="learning rate of AdamW after the warm-up; null: by the size of the model"
    )
    warmup_steps: int = Field(
        20,
        ge=0,
        le=10**6,
        description="steps of linear warm-up, over the life of the bot; the first night has at least three times as many",
    )
    batch_size: int = Field(16, ge=2, le=10**5, description="answers and pairs in each optimizer step")
    epochs: float = Field(4.0, gt=0, le=10**3, description="passes over a night's feedback; may be a fraction")
    steps: int | None = Field(None, ge=1, le=10**6, description="optimizer steps a night, instead of epochs")
    weight_decay: float = Field(0.0, ge=0, le=10**3, description="decoupled weight decay")
    max_grad_norm: float = Field(1.0, gt=0, le=10**6, description="maximum norm of the gradient")
    per_device_microbatch_size: int = Field(
        16, ge=1, le=10**5, description="answers in a forward pass; changes memory and speed, not what is learned"
    )
    checkpoint_steps: int = Field(
        10,
        ge=1,
        le=10**6,
        description="steps between a night's checkpoints, to which it goes back if a guard has no room at its end",
    )
    use_lora: bool = Field(False, description="train small adapters on the frozen first version")
    lora_r: int = Field(16, ge=1, le=2**16, description="rank of the adapters")
    lora_alpha: float = Field(32.0, gt=0, description="the adapters' change is scaled by lora_alpha / lora_r")
    lora_target_modules: list[str] | None = Field(
        None, min_length=1, description="linear layers to adapt, by the ends of their names; null: all of the trunk"
    )
    seed: int = Field(0, ge=0, lt=2**32, description="order of the examples, replay, adapters, resampling")


class FilterKeys(Settings):
    """Which feedback counts"""

    person_cap: float = Field(
        0.2,
        gt=0,
        le=1,
        description="largest share of one person in the weight of a night and its gate, or 1 / the number of people",
    )
    agreement: float = Field(
        0.6, ge=0, le=1, description="share of an answer's judges that must agree; the others' judgements are left out"
    )
    min_words: int = Field(1, ge=0, le=10**4, description="shortest answer to learn from, in words")
    max_words: int = Field(200, ge=1, le=10**6, description="longest answer to learn from, in words")


class GateKeys(Settings):
    """When a version is promoted"""

    min_heldout: int = Field(30, ge=1, le=10**6, description="held-out feedback events without which nothing changes")
    max_relative_kl: float = Field(
        2.0,
        gt=0,
        le=10**4,
        description="guard: largest KL per token from the first version, in units of its entropy; as much as the "
        "liked replies are off is allowed",
    )
    min_distinct_2: float = Field(
        0.7, ge=0, le=10, description="guard: smallest distinct-2 of the replies, as a multiple of the first version's"
    )
    max_worsening: float = Field(
        2.0,
        gt=0,
        le=10**9,
        description="guard: standard errors by which likelihood under the first version, unfinished sentences, length and "
        "repetition of the replies may worsen",
    )
    guard_prompts: Annotated[int, Field(ge=1, le=10**5)] | Literal["auto"] = Field(
        50,
        description="lines for the guards, from held-out dialogues and from sft_data_path each; auto: all stored lines, up to "
        "1,000, and 50 at checkpoints",
    )
    keep_last: int = Field(
        5, ge=1, le=10**4, description="newest versions whose files are kept, beside the best and first"
    )


def _limit(default: int, most: int, description: str, least: int = 1) -> Any:
    """A key that no dump has: a night is compared by the keys of learning."""
    return Field(default, ge=least, le=most, description=description, exclude=True)


class PageKeys(Settings):
    """Limits of the page, read when `serve` begins"""

    page_message_chars: int = _limit(4000, 10**6, "longest message, and longest better answer")
    page_request_bytes: int = _limit(1 << 18, 10**8, "largest request of a browser", 1 << 16)
    page_messages_a_minute: int = _limit(20, 10**6, "messages of one person, other answers too")
    page_messages_a_day: int = _limit(1000, 10**8, "messages of one person, other answers too")
    page_ratings_a_minute: int = _limit(60, 10**6, "ratings of one person")
    page_ratings_a_day: int = _limit(3000, 10**8, "ratings of one person")
    page_looks_a_minute: int = _limit(60, 10**6, "dialogues that one person opens, and questions why")
    page_looks_a_day: int = _limit(5000, 10**8, "dialogues that one person opens, and questions why")
    page_times_in_all: int = _limit(15, 10**6, "all people together may do this many times as much as one person")
    page_open_dialogues: int = _limit(200, 10**5, "dialogues in memory; others are read again when they go on")
    page_person_open_dialogues: int = _limit(5, 10**4, "dialogues of one person in memory")
    page_person: Literal["browser", "terminal"] = Field(
        "browser",
        exclude=True,
        description="who uses the page: each browser is a person, or all are the terminal's; terminal is for a page on this "
        "machine alone, without logins",
    )


class ApiKeys(Settings):
    """Limits of the API, read when `serve` begins"""

    api_request_bytes: int = _limit(2 * 10**6, 10**9, "largest request; clients send the whole dialogue", 1 << 16)
    api_rating_chars: int = _limit(10**4, 10**6, "longest reason, and longest correction")
    api_streams: int = _limit(2, 10**4, "answers to one person at the same time")
    api_streams_in_all: int = _limit(32, 10**5, "answers to all people at the same time")
    api_messages_a_minute: int = _limit(60, 10**6, "requests of one person for answers")
    api_messages_a_day: int = _limit(5000, 10**8, "requests of one person for answers")
    api_ratings_a_minute: int = _limit(120, 10**6, "ratings of one person, and withdrawals")
    api_ratings_a_day: int = _limit(5000, 10**8, "ratings of one person, and withdrawals")
    api_looks_a_minute: int = _limit(120, 10**6, "times that one person lists the models")
    api_looks_a_day: int = _limit(20000, 10**8, "times that one person lists the models")
    api_times_in_all: int = _limit(15, 10**6, "all people together may ask this many times as much as one person")


class BotSettings(ApiKeys, PageKeys, GateKeys, FilterKeys, OptimizerKeys, LossKeys):
    """How a bot learns from feedback"""

    @field_validator("lora_target_modules", mode="before", json_schema_input_type=list[str] | str | None)
    @classmethod
    def _one_name(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _together(self) -> "BotSettings":
        if self.min_words > self.max_words:
            raise ValueError(f"min_words: found {self.min_words}, wanted at most max_words, which is {self.max_words}")
        if self.page_request_bytes < (wanted := BYTES_A_CHAR * self.page_message_chars):
            raise ValueError(
                f"page_request_bytes: found {self.page_request_bytes}, wanted at least {BYTES_A_CHAR} for each of "
                f"page_message_chars, which is {wanted}"
            )
        return self


def read_settings(path: Path) -> BotSettings:
    """The settings of a bot's config.yaml. Raises one UserError that lists every mistake with its key."""
    return load_settings(BotSettings, path, no_effect=NO_EFFECT)


def default_settings() -> str:
    """config.yaml of a new bot: every key with its default, below what it means."""
    meanings = {name: field.description for name, field in BotSettings.model_fields.items()}
    values = {name: getattr(BotSettings(), name) for name in meanings}
    lines = ["# What `rlhf-dialog feedback learn` does, and the limits of page and API; see docs/FEEDBACK.md."]
    for line in yaml.safe_dump(values, sort_keys=False).splitlines():
        meaning = meanings.get(line.split(":")[0])
        lines += ["", f"# {meaning}", line] if meaning else [line]
    return "\n".join(lines) + "\n"
