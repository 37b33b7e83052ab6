"""What `precision`, `use_amp` and `amp_dtype` ask for together. `use_amp` and `amp_dtype` are the older keys."""

from typing import Literal

Asked = Literal["auto", "fp32", "bf16", "fp16"]


def requested_precision(precision: Asked, use_amp: bool | None, amp_dtype: Literal["auto", "bf16", "fp16"]) -> Asked:
    """The precision that the three keys ask for; `auto` is for the device to decide. `amp_dtype` alone asks for nothing."""
    if use_amp is None or precision != "auto":
        return precision
    if not use_amp:
        return "fp32"
    return "bf16" if amp_dtype == "auto" else amp_dtype


def check(precision: Asked, use_amp: bool | None, amp_dtype: Literal["auto", "bf16", "fp16"]) -> None:
    """Raises ValueError when `precision` asks for one thing, and an older key for another."""
    if precision == "auto":
        return
    conflicting = {}
    if use_amp is not None and use_amp == (precision == "fp32"):
        conflicting["use_amp"] = str(use_amp).lower()
    if amp_dtype not in ("auto", precision) and precision != "fp32":
        conflicting["amp_dtype"] = amp_dtype
    if conflicting:
        found = " and ".join(f"{key}: {value}" for key, value in conflicting.items())
        raise ValueError(
            f"precision: {precision}, but {found}; keep precision, and leave out {' and '.join(conflicting)}"
        )
