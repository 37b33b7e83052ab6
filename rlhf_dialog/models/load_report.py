"""Weights that a folder lacks, or has besides those of the model: what a model computes with must be in its file, not random."""

import logging
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_dialog.errors import UserError
from rlhf_dialog.models.trunk import trunk_of

logger = logging.getLogger(__name__)
WRAPPERS = {  # what a program puts into the names of the weights of a model that it wraps
    "_orig_mod.": "torch.compile",
    "base_model.model.": "PEFT",
    "pretrained_model.": "TRL with a value head",
    "_fsdp_wrapped_module.": "FSDP",
    "_checkpoint_wrapped_module.": "activation checkpointing",
    "module.": "DistributedDataParallel or DeepSpeed",
}
BUFFERS = re.compile(  # what earlier versions of the library stored, and now compute
    r"(^|\.)(masked_bias|inv_freq|position_ids|token_type_ids|causal_mask|cos_cached|sin_cached|num_batches_tracked"
    r"|embed_positions\.(weights|_float_tensor)|(attn|attention)\.bias)$"
)
OF_OTHER_TASKS = re.compile(r"(^|\.)(lm_head|embed_out|cls|predictions|lm_predictions|vocab_\w+|pooler)\.")
WHOLE = "give a whole folder of one model: its file and its config.json do not fit together"
SCORING = re.compile(r"^(score|classifier|v_head|value_head|reward_head)\.")


def check_report(
    model: Any, report: Mapping[str, Any], path: str, key: str, only_trunk: bool = False, scores: bool = False
) -> None:
    """Raises UserError when the model computes with a weight that its folder lacks, or has in another shape.

    `report`: the library's, after its own renaming. `only_trunk`: hidden states alone are computed; the head is not read, or is
    new and will be trained. A model that `scores`, a reward model or classifier, must not have weights besides that its class
    would drop; for others one line names them.
    """
    shapes = {name: (stored, wanted) for name, stored, wanted in report["mismatched_keys"]}
    needed = used_weights(model, {*report["missing_keys"], *shapes}, only_trunk)
    extra = sorted(name for name in report["unexpected_keys"] if not BUFFERS.search(name))
    where, name = f"{key}: '{path}'", type(model).__name__
    if needed:
        first = needed[0]
        if first in shapes:
            stored, wanted = (tuple(shape) for shape in shapes[first])
            what = f"{first} has the shape {stored} in the file, and {wanted} by config.json"
            raise UserError(what, where=where, remedy=WHOLE)
        raise UserError(lacks(needed, name), where=where, remedy=remedy(model, needed, extra, scores))
    dropped = [x for x in extra if not OF_OTHER_TASKS.search(x)]
    if scores and not only_trunk and dropped:
        what = f"has weights that {name} would drop, so its scores would be wrong: {grouped(model, dropped)}"
        raise UserError(what, where=where, remedy="give a model of a class of transformers")
    if extra:
        is_layer = any(prefix_of(model, x).rstrip(".").rpartition(".")[2].isdigit() for x in extra)
        level = logging.WARNING if is_layer else logging.INFO
        logger.log(level, "%s has weights that %s does not use: %s", where, name, grouped(model, extra))


@contextmanager
def without_table() -> Iterator[None]:
    """Inside the block, the library does not print its table of weights, or that tied ones are absent: see `check_report`."""

    def is_other(record: logging.LogRecord) -> bool:
        return not re.search(r"LOAD REPORT|both are absent", record.getMessage())

    library = logging.getLogger("transformers.modeling_utils")
    library.addFilter(is_other)
    try:
        yield
    finally:
        library.removeFilter(is_other)


def check_same_names(
    module: nn.Module, missing: Collection[str], unexpected: Collection[str], path: str, key: str
) -> None:
    """Raises UserError when a file of our own format lacks weights of the module, or has others."""
    if needed := [name for name in module.state_dict() if name in missing]:
        what = lacks(needed, type(module).__name__)
        raise UserError(what, where=f"{key}: '{path}'", remedy=remedy(module, needed, sorted(unexpected)))
    if unexpected:
        what = f"has weights that the model does not have: {grouped(module, unexpected)}"
        raise UserError(what, where=f"{key}: '{path}'", remedy=WHOLE)


def lacks(needed: Sequence[str], model: str) -> str:
    """What is wrong with a folder without the `needed` weights of the class `model`."""
    number = f"{len(needed)} weights" if len(needed) > 1 else "a weight"
    return f"lacks {number} that {model} computes with ({needed[0]}{', ..' if len(needed) > 1 else ''})"


def remedy(model: nn.Module, needed: Sequence[str], extra: Sequence[str], scores: bool = False) -> str:
    """What to do about a folder that lacks the `needed` weights and has `extra` ones; `scores`: see `check_report`."""
    if any(".lora_" in x for x in extra):
        return "it holds adapters: merge them into the model first (merge_and_unload of PEFT)"
    if added := added_to_names({*needed}, extra):
        return added
    if scores and not used_weights(model, needed, only_trunk=True):
        return "it was not trained as a classifier or reward model: train one from it, or give one"
    head = getattr(model, "get_output_embeddings", lambda: None)()
    of_head = {
        name for name, p in model.named_parameters() if head is not None and any(p is x for x in head.parameters())
    }
    if of_head.issuperset(needed):
        if scoring := [x for x in extra if SCORING.search(x)]:
            return f"it is a classifier or reward model ({scoring[0]}): give a language model"
        return "if the head is the input embedding, set tie_word_embeddings: true in its config.json"
    return WHOLE


def added_to_names(needed: Collection[str], extra: Sequence[str]) -> str:
    """What to remove from the names of the file, and who put it there; empty where nothing tells."""
    for mark, program in WRAPPERS.items():
        if 2 * sum(f".{mark}" in f".{name}" for name in extra) > len(extra):
            return f"saved from {program}: remove `{mark}` from the names of its weights"
    added = {name[: -len(end)] for name in extra for end in ends(name)[1:] if end in needed}
    return f"remove `{min(added, key=len)}` from the names of its weights" if added else ""


def ends(name: str) -> list[str]:
    """`a.b.c`, `b.c`, `c`."""
    parts = name.split(".")
    return [".".join(parts[start:]) for start in range(len(parts))]


def used_weights(model: Any, names: Collection[str], only_trunk: bool) -> list[str]:
    """Those of the named weights that the output depends on, by its gradient, in the model's order.

    Of numbered ones all count if one does: a few tokens use some experts of many. A buffer counts if it holds one number
    alone, as one that is computed does not.
    """
    if not names:
        return []
    kinds = {numberless(name) for name in names}
    weights = {name: x for name, x in model.named_parameters() if numberless(name) in kinds}
    buffers = {name: x for name, x in model.named_buffers() if name in names}
    used = {numberless(name) for name in weights}
    # a model that asks for other inputs raises one of these, and then all weights count
    with suppress(RuntimeError, ValueError, TypeError, AttributeError, LookupError):
        used = {numberless(name) for name in in_gradient(model, weights, only_trunk)}
    used |= {numberless(name) for name, x in buffers.items() if bool((x == x.flatten()[0]).all())}
    return [name for name in {**weights, **buffers} if name in names and numberless(name) in used]


@torch.enable_grad()
def in_gradient(model: Any, weights: Mapping[str, Tensor], only_trunk: bool) -> list[str]:
    """Those of the weights that have a gradient of the output for a few tokens."""
    ids = torch.arange(3, 7, device=model.device)[None] % model.get_input_embeddings().weight.shape[0]
    output = (trunk_of(model) if only_trunk else model)(input_ids=ids, attention_mask=torch.ones_like(ids))
    tensor = output["logits"] if "logits" in output else output[0]
    gradients = torch.autograd.grad(tensor.sum(), [*weights.values()], allow_unused=True)
    return [name for name, gradient in zip(weights, gradients, strict=True) if gradient is not None]


def grouped(model: nn.Module, names: Iterable[str]) -> str:
    """`vision_model. (23), score. (1)`: the beginnings of names that the model has not, and how many there are of each."""
    counts = Counter(prefix_of(model, name) for name in sorted(names))
    shown = [f"{prefix} ({count})" for prefix, count in counts.most_common(3)]
    return ", ".join(shown) + (f" and {len(counts) - 3} more" if len(counts) > 3 else "")


def prefix_of(model: nn.Module, name: str) -> str:
    """The beginning of the name, up to the first part that is no module of the model."""
    parts, module = name.split("."), model
    for number, part in enumerate(parts[:-1]):
        found = getattr(module, part, None)
        if not isinstance(found, nn.Module):
            return ".".join(parts[: number + 1]) + "."
        module = found
    return name


def numberless(name: str) -> str:
    return re.sub(r"(?<=\.)\d+(?=\.)", "*", name)
