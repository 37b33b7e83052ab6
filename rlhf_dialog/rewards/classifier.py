"""How a sequence classifier is run quickly on many texts: sorted by length, in bfloat16 where the processor has it."""

import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_dialog.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

PRECISIONS = ("auto", "fp32", "bf16")
ROUND_TO = 8  # tokens; oneDNN makes a plan for each length, so there should be few
Ids = dict[str, list[int]]


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
    import torch

    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    cpu = Path("/proc/cpuinfo")
    flags = cpu.read_text(encoding="utf-8", errors="replace") if cpu.is_file() else ""
    return "amx_bf16" in flags or "avx512_bf16" in flags


def check_weights(path: str, key: str, tokenizer: Any, model: Any, missing: Iterable[str] = (), kind: str = "") -> None:
    """Raises UserError when weights are `missing`, so that it is not `kind`, or the tokenizer belongs to another model."""
    from rlhf_dialog.models.pretrained import num_ids

    if missing:
        names = ", ".join(sorted(missing)[:4])
        raise UserError(f"{key}: '{path}' has no weights for {names}: it was not trained as {kind}")
    if num_ids(tokenizer) > (rows := model.get_input_embeddings().num_embeddings):
        raise UserError(
            f"{key}: the tokenizer of '{path}' has {num_ids(tokenizer)} tokens, but the model's embedding only {rows} rows: the "
            "tokenizer belongs to another model"
        )
