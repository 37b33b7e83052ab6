"""The base class of every configuration: what all of them check."""

import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, PrivateAttr, field_validator
from pydantic_core.core_schema import ValidationInfo

MOST = 10**12  # of any whole number


class Settings(BaseModel):
    """A flat configuration: rejects unknown keys and non-finite numbers, and reads `1e-6` written as a string as a number."""

    model_config = ConfigDict(
        extra="forbid",
        allow_inf_nan=False,
        coerce_numbers_to_str=True,
        protected_namespaces=(),
        validate_assignment=True,
    )

    _folder: Path | None = PrivateAttr(None)

    @property
    def folder(self) -> Path | None:
        """The folder of the file from which the settings were read."""
        return self._folder

    @field_validator("*", mode="before")
    @classmethod
    def _no_bool_as_number(cls, value: Any, info: ValidationInfo) -> Any:
        annotation = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and annotation in (int, float, int | None, float | None):
            raise ValueError("a number")
        if isinstance(value, str) and annotation in (int, int | None) and re.fullmatch(r"\d+(\.\d*)?[eE]\+?\d+", value):
            return float(value)  # PyYAML reads 1e5 as text
        return value

    @field_validator("*")
    @classmethod
    def _no_impossible_number(cls, value: Any) -> Any:
        if type(value) is int and abs(value) > MOST:
            raise ValueError(f"a whole number of at most {MOST:.0e}")
        return value
