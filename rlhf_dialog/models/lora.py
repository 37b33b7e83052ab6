"""LoRA: small trained adapters beside the frozen linear layers of a model; without an adapter the model is its own reference.

arXiv 2106.09685, section 4.1: a linear layer computes W x + B A x * alpha / r, where A (r, in) starts random and B (out, r) at
zero, so that an adapter changes nothing at first. peft inserts the layers into the model itself, which remains a transformers
model. Several adapters can share one frozen base: that of the policy, which is selected by default, and that of a separate
critic.
"""

import logging
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.pytorch_utils import Conv1D

from rlhf_dialog.data.chat_template import closing_ids
from rlhf_dialog.errors import UserError
from rlhf_dialog.models.cpu_linear import FASTER, use_onednn
from rlhf_dialog.models.logprobs import at_least_float32
from rlhf_dialog.models.precision import HALF
from rlhf_dialog.models.quantized import dequantized, quantized_layers, without_kernels
from rlhf_dialog.models.trunk import trunk_of

logger = logging.getLogger(__name__)
ROWS = 4096  # of an embedding that are compared at once
OF_ADAPTER = re.compile(r"\.lora_[A-Za-z_]+\.(\w+)(\.|$)")  # in the name of a parameter: the adapter that it belongs to


def add_adapters(
    lm: PreTrainedModel, adapters: Sequence[str], r: int, alpha: float, targets: Sequence[str] | None, seed: int
) -> None:
    """Freeze the model and put adapters beside its linear layers; the first one is selected.

    `targets` are the layers' names or the ends of them (`q_proj`); None: every linear layer of the trunk. The random halves
    depend only on the seed, are the same in every process, and do not advance the global random state. Raises UserError
    for a name that no layer has.
    """
    with without_kernels():  # peft imports bitsandbytes where it is installed
        from peft import LoraConfig, inject_adapter_in_model  # takes six seconds

    names = adaptable(lm, target_names(lm, targets), targets)
    by_layout: dict[bool, list[str]] = {}  # a Conv1D has its weight as (in, out)
    for name in names:
        by_layout.setdefault(isinstance(lm.get_submodule(name), Conv1D), []).append(f"lm.{name}")
    lm.requires_grad_(False)
    named = nn.ModuleDict({"lm": lm})  # of no known type, for which peft would put experts in place of what is named
    onednn = any(type(module) in FASTER.values() for module in lm.modules())
    held = [(p, p.data) for p in lm.parameters() if p.dtype in HALF]
    for p, x in held:  # they say that they are float32, in which peft then makes adapters, and hold nothing
        p.data = torch.zeros((), device=x.device).expand(x.shape)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Already found a `peft_config`")  # a second adapter is intended
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would leave its seed on every GPU
        for adapter in adapters:
            for transposed, some in by_layout.items():
                config = LoraConfig(r=r, lora_alpha=alpha, target_modules=some, fan_in_fan_out=transposed)  # type: ignore[arg-type]
                inject_adapter_in_model(config, named, adapter)
    for p, x in held:
        p.data = x
    use_onednn(lm, onednn)
    lm.eval()
    _select(lora_layers(lm), [adapters[0]] * len(names))


def target_names(lm: PreTrainedModel, targets: Sequence[str] | None) -> list[str]:
    """The full names of the linear layers of the trunk that match `targets`. Raises UserError for a target without a match."""
    trunk = {id(module) for module in trunk_of(lm).modules()} - {id(lm.get_output_embeddings())}
    linear = [n for n, m in lm.named_modules() if isinstance(m, nn.Linear | Conv1D) and id(m) in trunk]
    if targets is None:
        return linear
    targeted: set[str] = set()
    for target in targets:
        chosen = {name for name in linear if name == target or name.endswith(f".{target}")}
        if not chosen:
            known = ", ".join(sorted({name.rsplit(".", 1)[-1] for name in linear}))
            raise UserError(
                f"lora_target_modules: '{target}' is not a linear layer of the trunk of {type(lm).__name__}; use one of {known}"
            )
        targeted |= chosen
    return [name for name in linear if name in targeted]


def adaptable(lm: PreTrainedModel, names: list[str], targets: Sequence[str] | None) -> list[str]:
    """The named layers without those that peft refuses, as kernels read their weight past the layer; one line names these.

    Raises UserError where the user named such a layer.
    """
    from peft import LoraConfig
    from peft.tuners.tuners_utils import _check_lora_target_modules_mamba

    refused = set()
    for layer in sorted({name.rsplit(".", 1)[-1] for name in names}):
        try:
            _check_lora_target_modules_mamba(LoraConfig(), lm, layer)
        except ValueError as error:
            if targets is not None:
                what = f"peft does not adapt {layer} of {type(lm).__name__}"
                raise UserError(what, where="lora_target_modules", remedy="leave it out") from error
            refused.add(layer)
    if refused:
        text = "use_lora: %s of %s gets no adapters, which peft does not support there"
        logger.info(text, ", ".join(sorted(refused)), type(lm).__name__)
    return [name for name in names if name.rsplit(".", 1)[-1] not in refused]


@torch.no_grad()
def warn_of_untrained_end(lm: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, turn_separator: str) -> None:
    """A warning where the token that ends a reply was never trained: its embedding equals that of other tokens, up to rounding.

    Adapters do not change embeddings, so the model could only ever give all these tokens the same probability.
    """
    ends = closing_ids(tokenizer, turn_separator) or {tokenizer.eos_token_id}
    embeddings: list[Any] = [lm.get_output_embeddings(), lm.get_input_embeddings()]
    weights: dict[int, Tensor] = {id(x.weight): x.weight for x in embeddings}
    for end in sorted(i for i in ends if i is not None):
        for weight in weights.values():
            limit = 1e-6 * torch.linalg.vector_norm(weight, dtype=torch.float32) / math.sqrt(weight.numel())
            differences = [(rows - weight[end]).abs().amax(dim=1) for rows in weight.split(ROWS)]
            same = [i for i in (torch.cat(differences) <= limit).nonzero().flatten().tolist() if i != end]
            if same:
                logger.warning(
                    "use_lora: the end token %r was never trained (its embedding equals that of %d others, as %r), and adapters "
                    "do not change embeddings, so replies cannot learn to end with it; fine-tune without use_lora first, or "
                    "start from a model that was trained to end its replies",
                    *(tokenizer.convert_ids_to_tokens(end), len(same), tokenizer.convert_ids_to_tokens(same[0])),
                )
                return


def lora_layers(module: nn.Module) -> list[Any]:
    """The layers with adapters below a module; works without peft."""
    return [child for child in module.modules() if hasattr(child, "lora_A")]


def selection(layer: Any) -> str | None:
    """The adapter that a layer computes with, or None."""
    return None if layer.disable_adapters else layer.active_adapters[0]


@contextmanager
def select_adapter(module: nn.Module, adapter: str | None) -> Iterator[None]:
    """Inside the block, the layers below `module` compute with this adapter; None: as the frozen base.

    All layers change together, so the first one says whether there is anything to do.
    """
    layers = lora_layers(module)
    if not layers or selection(layers[0]) == adapter:
        yield
        return
    before = [selection(layer) for layer in layers]
    _select(layers, [adapter] * len(layers))
    try:
        yield
    finally:
        _select(layers, before)


def _select(layers: Iterable[Any], adapters: Iterable[str | None]) -> None:
    """Select an adapter (or None) in each layer.

    peft turns requires_grad off in adapters that are not selected, and autograd silently drops a gradient that arrives at
    such a parameter; so it is turned on again in all of them.
    """
    for layer, adapter in zip(layers, adapters, strict=True):
        layer.enable_adapters(adapter is not None)
        if adapter is not None:
            layer.set_adapter(adapter)
        for name, parameter in layer.named_parameters():
            if OF_ADAPTER.search(f".{name}"):
                parameter.requires_grad_(True)


def trainable_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that the module's own optimizer updates, by name: with LoRA (`module.adapter`) its adapter and its head."""
    adapter = getattr(module, "adapter", None)
    parameters = {}
    for name, parameter in module.named_parameters():
        owner = OF_ADAPTER.search(name)
        if parameter.requires_grad and (owner is None or owner[1] == adapter):
            parameters[name] = parameter
    return parameters


def base_parameters(lm: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The parameters of the model without its adapters, with the names that they had before; those in 4 bits dequantized."""
    in_4bit = quantized_layers(lm)
    for name, parameter in lm.named_parameters():
        if not OF_ADAPTER.search(name):
            name = name.replace(".base_layer.", ".")
            yield name, dequantized(in_4bit[name]) if name in in_4bit else parameter


@torch.no_grad()
def merged_weights(lm: nn.Module, adapter: str | None) -> Iterator[tuple[str, Tensor]]:
    """Names and weights of the model with W + B A * alpha / r in place of each W that has this adapter, one after the other.

    Those that the base holds in 16 or 4 bits are float32 here; the model is not changed.
    """
    layers = {f"{name}.weight": layer for name, layer in lm.named_modules() if adapter and hasattr(layer, "lora_A")}
    in_4bit = quantized_layers(lm)
    for name, x in lm.state_dict().items():
        if OF_ADAPTER.search(name):
            continue
        name = name.replace(".base_layer.", ".")
        if f"{name.partition('.weight.')[0]}.weight" in in_4bit:
            continue  # scales
        change = layers[name].get_delta_weight(adapter) if name in layers else 0
        if name in in_4bit:
            x = dequantized(in_4bit[name], change)
        elif name in layers:
            x = layers[name].base_layer.weight + change
        yield name, at_least_float32(x) if x.is_floating_point() else x


def merged_state(lm: nn.Module, adapter: str) -> dict[str, Tensor]:
    """All `merged_weights`, a tied one once; those that are merged lie on the host."""
    changed = {*quantized_layers(lm)} | {
        f"{name}.weight" for name, layer in lm.named_modules() if hasattr(layer, "lora_A")
    }
    tied = tied_names(lm)
    weights = merged_weights(lm, adapter)
    return {name: x.cpu() if name in changed else x for name, x in weights if name not in tied}


def tied_names(lm: nn.Module) -> set[str]:
    """The names of weights that are another one of the model, such as an output embedding tied to the input's."""
    return {*getattr(lm, "all_tied_weights_keys", ())}
