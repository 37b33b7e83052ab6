"""The base class of every configuration, and the keys that runs, supervised training and saved agents share."""

import json
import re
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator, model_validator
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core.core_schema import ValidationInfo

from rlhf_dialog.config.checks import check_precision

Precision = Literal["auto", "fp32", "bf16", "fp16"]
CountOrAuto = Annotated[int, Field(ge=1)] | Literal["auto"]
WHOLE_NUMBERS = (int, int | None, CountOrAuto)


class AsksPrecision:
    @property
    def asked_precision(self: Any) -> Precision:
        """What `precision`, else `use_amp` with `amp_dtype`, asks for; `auto`: the device decides."""
        if (use_amp := getattr(self, "use_amp", None)) is None or self.precision != "auto":
            return self.precision  # type: ignore[no-any-return]
        older: Precision = getattr(self, "amp_dtype", "auto") if use_amp else "fp32"
        return "bf16" if older == "auto" else older


class Settings(BaseModel):
    """The settings of a YAML: no unknown keys, no NaN or inf, no booleans for numbers; `1e5` and `1e-6` are numbers."""

    model_config = ConfigDict(
        extra="forbid",
        allow_inf_nan=False,
        coerce_numbers_to_str=True,
        protected_namespaces=(),
        validate_assignment=True,
    )

    _folder: Path | None = PrivateAttr(None)

    @property
    def source_folder(self) -> Path | None:
        """The folder of the file from which the settings were read."""
        return self._folder

    @field_validator("*", mode="before")
    @classmethod
    def _read_value(cls, value: Any, info: ValidationInfo) -> Any:
        annotation = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and annotation in (*WHOLE_NUMBERS, float, float | None):
            raise ValueError("a number")
        if isinstance(value, str) and annotation in WHOLE_NUMBERS and re.fullmatch(r"\d+(\.\d*)?[eE]\+?\d+", value):
            return float(value)  # PyYAML reads 1e5 as text
        is_nested = isinstance(annotation, type) and issubclass(annotation, Settings)  # which finds its own
        if not is_nested and _holds_nul(value):
            raise ValueError("a text without the character NUL, which no path and no name may have")
        return value


def _holds_nul(value: Any) -> bool:
    """Whether a text in nested mappings and lists has the character NUL."""
    if isinstance(value, dict):
        return any(_holds_nul(one) for pair in value.items() for one in pair)
    return any(map(_holds_nul, value)) if isinstance(value, list | tuple) else isinstance(value, str) and "\0" in value


def schema_text(settings: type[Settings]) -> str:
    """The JSON schema of the YAML that is read as `settings`. No key is required: the command line may set it."""
    schema = {"$schema": GenerateJsonSchema.schema_dialect, **settings.model_json_schema()}
    for mapping in (schema, *schema.get("$defs", {}).values()):
        mapping.pop("required", None)
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


# keys of runs and of supervised training alike
DeviceKey = Annotated[Literal["auto", "cpu", "cuda"], Field(description="auto: cuda if available, else cpu")]
AmpKey = Annotated[bool | None, Field(description="older key. true: same as precision: bf16; false: as fp32")]
SeedKey = Annotated[int, Field(ge=0, lt=2**32)]
ThreadsKey = Annotated[int | None, Field(ge=1, le=1024, description="CPU threads; default: PyTorch decides")]
DecayKey = Annotated[float, Field(ge=0, le=10**6, description="decoupled weight decay (AdamW)")]
TrustCodeKey = Annotated[bool, Field(description="allow a model to run the code in its folder")]
PickleKey = Annotated[bool, Field(description="read pytorch_model.bin (pickle) if there are no safetensors")]
OverlapKey = Annotated[
    bool, Field(description="leave out training dialogues that nearly repeat a validation or test dialogue")
]


class ComputeKeys(AsksPrecision, Settings):
    """Device and precision"""

    device: DeviceKey = "auto"
    precision: Literal["auto", "fp32", "bf16"] = Field("auto", description="auto: bf16 on a GPU that has it, else fp32")
    use_amp: AmpKey = None

    @model_validator(mode="after")
    def _one_precision(self) -> Self:
        check_precision(self)
        return self


ColumnKind = Literal[
    "messages", "utterance", "role", "speaker", "act", "dialog_id", "prompt", "input", "history", "system", "reference",
    "references", "chosen", "rejected", "margin", "parent", "message_id",
    "turn.user", "turn.assistant", "turn.utterance", "turn.role", "turn.speaker", "turn.act",
]  # fmt: skip
ColumnsKey = Annotated[
    dict[ColumnKind, str],
    Field(description="what columns of the data hold, such as {prompt: question, reference: answer}; docs/DATA.md"),
]
SplitKey = Annotated[
    dict[Literal["train", "validation", "test"], str],
    Field(description="what the data calls its splits, such as {train: train_sft, validation: test_sft}"),
]
TokenId = Annotated[int, Field(ge=0, strict=True)]


class ReplyKeys(Settings):
    """Who replies"""

    reply_roles: list[str] = Field(
        [], description="roles in the data that reply, such as [waiter]; default: assistant, gpt, bot, model, chatbot"
    )

    @field_validator("reply_roles")
    @classmethod
    def _in_lower_case(cls, value: list[str]) -> list[str]:
        return [role.strip().lower() for role in value]


class DataKeys(ReplyKeys):
    """Prompts and responses"""

    context_size: int = Field(5, ge=1, le=10**6, description="number of most recent turns in a prompt")
    min_context_size: int = Field(
        1, ge=1, description="minimum number of turns before a reply; 5 gives OpenRL's prompts"
    )
    drop_overlap: OverlapKey = False
    max_prompt_length: int = Field(
        128,
        ge=2,
        le=10**6,
        description="maximum tokens of a prompt; drops the oldest turns first, then tokens from the left",
    )
    turn_separator: str = Field(
        "auto",
        min_length=1,
        description="text or special token that ends each turn; chat_template: use the tokenizer's chat template; auto: as the "
        "model's folder says (rlhf_dialog.json), else its chat template where it has one, else <EOU>",
    )
    system_prompt: str | None = Field(
        None,
        min_length=1,
        max_length=10_000,
        description="system message of the prompts whose row has none; null: that of the chat template",
    )
    date_string: str | None = Field(
        None, description="day that a chat template writes, such as 2026-07-26; null: the day on which the run begins"
    )

    @field_validator("date_string", mode="before")
    @classmethod
    def _a_day(cls, value: Any) -> Any:
        """PyYAML reads a day as a date."""
        try:
            return None if value is None else date.fromisoformat(str(value)).isoformat()
        except ValueError:
            raise ValueError("a day such as 2026-07-26") from None


class SamplingKeys(Settings):
    """Sampling"""

    max_new_tokens: int = Field(20, ge=1, le=10**6, description="maximum length of a response in tokens")
    temperature: float = Field(1.0, ge=1e-4, description="sampling temperature; log-probabilities include it")
    top_k: int = Field(
        0, ge=0, description="sample from the k most likely tokens; log-probabilities include it; 0: off"
    )
    top_p: float = Field(
        1.0, gt=0, le=1, description="sample from the most likely tokens with this total probability; 1: off"
    )
    stop_token_ids: list[TokenId] = Field(
        [], description="further ids that end a response, besides the model's end tokens and turn_separator"
    )


class ChatKeys(Settings):
    """Chat"""

    chat_temperature: float | None = Field(
        None,
        ge=0,
        le=100,
        description="temperature of chat and page; 0: always the most likely token; null: temperature",
    )
    chat_top_p: float | None = Field(None, gt=0, le=1, description="top_p of chat and page; null: top_p")
    introduction: str | None = Field(
        None,
        min_length=1,
        max_length=1000,
        description="text shown before a chat: whom the agent plays, and what to try",
    )
