"""The memory that a model takes, computed from its config.json without reading any weight.

In the formulas: h hidden width, I width of the MLP, A = heads * head_dim, H heads, L tokens of a row. A mixture of experts is
counted with all its parameters and the activations of one expert.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig

MLP_FLOATS = {
    "FastGELUActivation": 5,
    "QuickGELUActivation": 3,
    "ReLU": 1,
}  # of I; others: 2; models.loading fuses NewGELU


@dataclass(frozen=True)
class Sizes:
    """Counts of parameters and of tensor elements."""

    parameters: int
    trunk: int  # without an output embedding of its own
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    intermediate: int
    positions: int | None
    largest: int  # the largest single parameter
    # last part of the name, inputs, outputs: of every linear layer of the trunk
    linears: tuple[tuple[str, int, int], ...]
    # of h, kept by a norm for its backward: its input and output; 3 where an RMSNorm is written out
    norm_floats: int = 2
    mlp_floats: int = 2  # of I, kept by an MLP: input and output of a fused activation; see MLP_FLOATS; 4 with a gate
    norm_readers: int = 2  # linear layers that read the two norms of a layer; autocast converts for each of them
    explicit_attention: bool = False  # the model has no fused attention: the probabilities (H, L, L) are kept
    checkpoint_type: torch.dtype = torch.float32  # of the weights on the disk, as config.json says

    @property
    def linear(self) -> int:
        """Weights of the trunk's linear layers."""
        return sum(inputs * outputs for _, inputs, outputs in self.linears)

    @property
    def own_head(self) -> int:
        """Weights of an output embedding that is no input embedding."""
        return self.parameters - self.trunk

    @property
    def embedding(self) -> int:
        """Weights of an output embedding."""
        return self.vocab * self.hidden


def model_sizes(hf_config: PreTrainedConfig, auto_class: Any = AutoModelForCausalLM) -> Sizes:
    """The sizes of the model that `auto_class` builds from the configuration, on the meta device, which takes no memory."""
    with torch.device("meta"):
        model = auto_class.from_config(hf_config, trust_remote_code=False)
    config: Any = model.config.get_text_config()
    modules = list(model.base_model.named_modules())
    kinds = {type(module).__name__ for _, module in modules}
    names = {last_name(name) for name, _ in modules}
    gated = any(name.startswith("gate_") for name in names)
    heads = config.num_attention_heads
    return Sizes(
        parameters=sum(p.numel() for p in model.parameters()),
        trunk=sum(p.numel() for p in model.base_model.parameters()),
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        vocab=config.vocab_size,
        intermediate=_intermediate(config),
        positions=getattr(config, "max_position_embeddings", None),
        largest=max(p.numel() for p in model.parameters()),
        linears=tuple(_linears(modules)),
        norm_floats=3 if any(kind.endswith("RMSNorm") and kind != "RMSNorm" for kind in kinds) else 2,
        mlp_floats=4 if gated else max((MLP_FLOATS[kind] for kind in kinds & set(MLP_FLOATS)), default=2),
        norm_readers=(3 if names & {"q_proj", "query"} else 1) + (2 if gated else 1),
        explicit_attention=not getattr(model, "_supports_sdpa", False),
        checkpoint_type=hf_config.dtype if isinstance(hf_config.dtype, torch.dtype) else torch.float32,
    )


def last_name(path: str) -> str:
    """The last part of a dotted name: `c_attn` of transformer.h.0.attn.c_attn."""
    return path.rsplit(".", 1)[-1]


def _intermediate(config: Any) -> int:
    names = ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner")
    return next((int(found) for name in names if (found := getattr(config, name, None))), 4 * config.hidden_size)


def _linears(modules: list[tuple[str, nn.Module]]) -> Iterator[tuple[str, int, int]]:
    for name, module in modules:
        if isinstance(module, nn.Linear):
            yield last_name(name), module.in_features, module.out_features
        elif type(module).__name__ == "Conv1D":  # GPT-2's linear layer: weight (in, out)
            weight: Any = module.weight
            yield last_name(name), int(weight.shape[0]), int(weight.shape[1])


def lora_parameters(sizes: Sizes, rank: int, targets: tuple[str, ...] = ()) -> int:
    """r * (in + out) for each linear layer that gets an adapter: A (r, in) and B (out, r); arXiv 2106.09685, section 4.1.

    `targets` are last parts of layer names; empty: all linear layers of the trunk.
    """
    return sum(rank * (inputs + outputs) for name, inputs, outputs in sizes.linears if not targets or name in targets)


@dataclass(frozen=True)
class ForwardPass:
    """How a forward pass whose gradients are needed is computed."""

    float_bytes: int = 4  # width of what linear layers take and give
    norm_bytes: int = (
        4  # of what norms read: fp32 under autocast, which copies a norm's output for each layer that reads it
    )
    packed: bool = True
    checkpointing: bool = False  # of activations
    lora: bool = False  # the base is frozen: a norm that is written out keeps its input alone


def kept_bytes(sizes: Sizes, tokens: int, length: int, how: ForwardPass, keys: int | None = None) -> int:
    """Bytes that a forward pass of the trunk over `tokens` tokens in rows of `length` keeps for its backward.

    A token and layer keep: 2 norms (input and output: 4h; 6h for an RMSNorm that is written out), queries, keys and values with
    as many heads as the queries and the result (4A), and the MLP: 2I around a fused activation (as `models.load_causal_lm` makes
    GPT-2's), 1I around a ReLU, 4I with a gate; H * L more where the attention is explicit. That is arXiv 2205.05198, section
    4.1, less its masks of dropout: 16h for GPT-2. `packed` rows keep the result without padding as well.
    With activation checkpointing a layer keeps its input, and one layer at a time all of the above. `keys`: the places of keys
    and values in all rows, where these are more than the tokens, because rows share some.
    """
    outputs = sizes.norm_readers if how.float_bytes < how.norm_bytes else 2
    norm_floats = 1 if how.lora else sizes.norm_floats - 1
    norms = sizes.hidden * (2 * how.norm_bytes * norm_floats + outputs * how.float_bytes)
    width = sizes.heads * sizes.head_dim
    attention = 2 * width + (width if how.packed else 0)
    attention += sizes.heads * length if sizes.explicit_attention else 0
    per_token = norms + (attention + sizes.mlp_floats * sizes.intermediate) * how.float_bytes
    layer = tokens * per_token + (tokens if keys is None else keys) * 2 * width * how.float_bytes
    if how.checkpointing:
        return tokens * sizes.layers * sizes.hidden * how.norm_bytes + layer
    return sizes.layers * layer


def live_bytes(sizes: Sizes, tokens: int, length: int, float_bytes: int = 4, lora: bool = False) -> int:
    """Bytes held at once by a pass without gradients: the residual stream, a norm, and the attention or MLP of one layer.

    With `lora` an adapter reads the MLP's widest input in fp32.
    """
    attention = 5 * sizes.heads * sizes.head_dim + (2 * sizes.heads * length if sizes.explicit_attention else 0)
    mlp = (min(sizes.mlp_floats, 4) + (2 if lora and float_bytes == 2 else 0)) * sizes.intermediate
    return tokens * (3 * sizes.hidden * 4 + max(attention, mlp) * float_bytes)
