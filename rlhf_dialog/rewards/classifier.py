"""How a sequence classifier is run quickly on many texts: sorted by length, in bfloat16 where the processor has it."""

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_dialog.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

PRECISIONS = ("auto", "fp32", "bf16")
ROUND_TO = 8  # tokens; oneDNN makes a plan for each length, so there should be few


def class_logits(
    model: Any, tokenizer: Any, inputs: list[dict[str, Any]], batch_size: int | None, precision: str
) -> "Tensor":
    """Logits (N, classes) in float32 for N tokenised, unpadded texts, in batches of `batch_size` texts of similar length.

    `batch_size` None: 8 on a CPU, where a small batch has less padding and is not slower, 64 on a GPU.
    """
    import torch

    batch_size = batch_size or (8 if model.device.type == "cpu" else 64)
    bf16 = uses_bf16(precision, model.device.type)
    logits = torch.zeros(len(inputs), model.config.num_labels)
    order = sorted(range(len(inputs)), key=lambda i: len(inputs[i]["input_ids"]))
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        longest = len(inputs[rows[-1]]["input_ids"])
        multiple = ROUND_TO if longest + ROUND_TO <= tokenizer.model_max_length else None
        batch = tokenizer.pad([inputs[i] for i in rows], return_tensors="pt", pad_to_multiple_of=multiple)
        with torch.inference_mode(), torch.autocast(model.device.type, torch.bfloat16, enabled=bf16):
            logits[rows] = model(**batch.to(model.device)).logits.float().cpu()
    return logits


def uses_bf16(precision: str, device: str) -> bool:
    """Whether a classifier of this `precision` computes in bfloat16 on a device of the type `device`."""
    return precision == "bf16" or (precision == "auto" and bf16_is_faster(device))


@functools.cache
def bf16_is_faster(device: str) -> bool:
    """Whether matrix products are several times faster in bfloat16: on a GPU or CPU with hardware support for it."""
    import torch

    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    cpu = Path("/proc/cpuinfo")
    flags = cpu.read_text(encoding="utf-8", errors="replace") if cpu.is_file() else ""
    return "amx_bf16" in flags or "avx512_bf16" in flags


def check_precision(precision: str) -> str:
    """Return `precision`. Raises UserError when it is not one of PRECISIONS."""
    if precision not in PRECISIONS:
        raise UserError(f"reward_class.args.precision: {precision!r} is not one of {', '.join(PRECISIONS)}")
    return precision
