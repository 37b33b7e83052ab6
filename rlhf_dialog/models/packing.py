"""Rows of different lengths in one sequence without padding, so that a language model computes only real tokens.

All linear layers, norms and embeddings see (1, N); only the attention, which we register with transformers, sees rows. This
works for any transformers model that takes its attention from the library's registry.

B rows, N tokens of all rows, L tokens of the longest row, W columns of a cache, H heads, D width of a head.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from rlhf_dialog.models.masks import as_bias
from rlhf_dialog.models.token_batch import Packed, Rows, send

ROUND_TO = 64
ATTENTION = "rlhf_dialog_packed"  # its name in the registry of transformers
UNKNOWN = ("softcap", "s_aux", "position_bias")  # arguments of some models' attention that ours would have to ignore


class KeyValues:
    """The keys and values of B rows, each from column 0 on; a new token is written into the column after its row's last.

    `lengths` (B,) is the number of columns of each row that hold a token.
    """

    def __init__(self, lengths: Tensor, num_new: int, device: torch.device | None = None):
        """`lengths` lies on the host; keys and values will be on `device`, by default there too."""
        self.device = device or lengths.device
        self._set_lengths(lengths)
        self.width = self.longest + num_new
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def _set_lengths(self, lengths: Tensor) -> None:
        self.on_host, self.longest = lengths, int(lengths.max())
        self.lengths, self.rows = send(lengths, self.device), torch.arange(len(lengths), device=self.device)

    def grow(self) -> None:
        """A token was appended to each row."""
        self.on_host, self.longest, self.lengths = self.on_host + 1, self.longest + 1, self.lengths + 1

    def begin(self, layer: int, first_row: int, keys: Tensor, values: Tensor) -> None:
        """Store keys and values (b, H, L, D) of the prompts of rows `first_row` to `first_row + b`."""
        if layer not in self.layers:
            rows, heads, width = len(self.lengths), keys.shape[1], self.width
            new_keys = keys.new_zeros(rows, heads, width, keys.shape[3])
            self.layers[layer] = new_keys, values.new_zeros(rows, heads, width, values.shape[3])
        for stored, new in zip(self.layers[layer], (keys, values), strict=True):
            stored[first_row : first_row + len(new), :, : new.shape[2]] = new

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write one token's keys and values (B, H, D) for each row; returns those of all columns up to the longest row's."""
        for stored, new in zip(self.layers[layer], (keys, values), strict=True):
            stored[self.rows, :, self.lengths] = new.to(stored.dtype)
        end = self.longest + 1
        stored_keys, stored_values = self.layers[layer]
        return stored_keys[:, :, :end], stored_values[:, :, :end]

    def take(self, rows: Tensor) -> None:
        """Go on with these rows, given by their numbers on the host; one that is named twice is copied."""
        self._set_lengths(self.on_host[rows])
        kept = send(rows, self.device)
        for layer, (keys, values) in self.layers.items():  # one at a time: never two whole caches
            self.layers[layer] = keys.index_select(0, kept), values.index_select(0, kept)


@dataclass
class Prompting:
    """Attention within the rows of a packed sequence; a `cache` keeps keys and values, from its row `first_row` on."""

    packed: Packed
    cache: KeyValues | None = None
    first_row: int = 0

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """query (1, H, N, D), keys and values with as many heads or fewer -> (1, N, H, D)."""
        outputs = []
        for rows in self.packed.groups:
            if rows.seen is not None:
                keys, values = (gather_rows(x, rows) for x in (key, value))
                out = masked_attention(pad_rows(query, rows), keys, values, scale, rows.bias(window, query.dtype))
            else:
                queries, keys, values = (pad_rows(x, rows) for x in (query, key, value))
                out = causal_attention(queries, keys, values, scale, window)
                if self.cache is not None:
                    self.cache.begin(layer, self.first_row + rows.first, keys, values)
            outputs.append(out.transpose(1, 2).flatten(0, 1).index_select(0, rows.place))
        real = torch.cat(outputs)
        return pad(real, (0, 0, 0, 0, 0, query.shape[2] - len(real))).unsqueeze(0)


def pad_rows(x: Tensor, rows: Rows) -> Tensor:
    """(1, H, N, D) -> (B, H, L, D), the tokens of the rows, zeros where one is shorter than the longest."""
    flat = x.new_zeros(rows.count * rows.width, x.shape[1], x.shape[3])
    flat.index_put_((rows.place,), x[0].transpose(0, 1)[rows.tokens])  # index_copy would keep x for the way back
    return flat.view(rows.count, rows.width, *flat.shape[1:]).transpose(1, 2)


def gather_rows(x: Tensor, rows: Rows) -> Tensor:
    """(1, H, N, D) -> (B, H, L, D), all tokens of the longer rows of which the rows are the ends."""
    assert rows.seen is not None
    return x[0].transpose(0, 1).index_select(0, rows.seen).unflatten(0, (rows.count, -1)).transpose(1, 2)


@dataclass
class Decoding:
    """Attention of one new token of each row to all tokens of its row; made for one step, for all layers."""

    cache: KeyValues
    biases: dict[Any, Tensor] = field(default_factory=dict)  # by type and window, which differs by layer in some models

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """query (1, H, B, D), keys and values with as many heads or fewer -> (1, B, H, D)."""
        keys, values = self.cache.append(layer, key[0].transpose(0, 1), value[0].transpose(0, 1))
        heads, rows, width = query.shape[1:]
        grouped = query[0].transpose(0, 1).reshape(rows, keys.shape[1], -1, width)  # heads that share keys side by side
        bias = self._bias(window, query.dtype)
        out = scaled_dot_product_attention(
            grouped, keys.to(query.dtype), values.to(query.dtype), attn_mask=bias, scale=scale
        )
        return out.reshape(1, rows, heads, width)

    def _bias(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """The bias (B, 1, 1, L) by which each row sees its columns."""
        if (window, dtype) not in self.biases:
            columns = torch.arange(self.cache.longest + 1, device=self.cache.device)
            newest = self.cache.lengths.unsqueeze(1)
            seen = columns <= newest if window is None else (columns <= newest) & (columns > newest - window)
            self.biases[window, dtype] = as_bias(seen[:, None, None], dtype)
        return self.biases[window, dtype]


def causal_attention(query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
    """Softmax attention (B, H, L, D) in which no token looks ahead, nor further back than `window` tokens."""
    length = query.shape[2]
    if window is not None and window >= length:
        window = None
    if window is None and not is_explicit(query, length):
        key, value = (for_each_head(x, query) for x in (key, value))
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)
    distance = torch.arange(length, device=query.device).unsqueeze(1) - torch.arange(length, device=query.device)
    seen = distance >= 0 if window is None else (distance >= 0) & (distance < window)
    return masked_attention(query, key, value, scale, as_bias(seen, query.dtype))


def masked_attention(query: Tensor, key: Tensor, value: Tensor, scale: float, bias: Tensor) -> Tensor:
    """Softmax attention of queries (B, H, T, D) to L keys and values, whose scores get the `bias` (T, L) or (B, 1, T, L)."""
    key, value = (for_each_head(x, query) for x in (key, value))
    if not is_explicit(query, key.shape[2]):
        return scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scale)
    # torch's fused kernel takes several times longer for the backward pass in bfloat16 on a CPU (docs/PERFORMANCE.md)
    bias = bias.expand(*query.shape[:3], -1).flatten(0, 1) if bias.dim() == 4 else bias
    scores = torch.baddbmm(bias, query.flatten(0, 1), key.flatten(0, 1).transpose(1, 2), alpha=scale)
    return torch.bmm(scores.softmax(dim=-1), value.flatten(0, 1)).view_as(query)


def is_explicit(query: Tensor, num_keys: int) -> bool:
    """Whether attention is computed by its formula."""
    return query.device.type == "cpu" and query.dtype == torch.bfloat16 and num_keys <= 256


def for_each_head(x: Tensor, query: Tensor) -> Tensor:
    """Keys or values (B, H, L, D), once for each of the query's heads."""
    return x if x.shape[1] == query.shape[1] else x.repeat_interleave(query.shape[1] // x.shape[1], dim=1)


def packed_attention(  # noqa: PLR0913 - the signature of transformers
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    packing: Prompting | Decoding | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The attention that transformers calls for each layer; without `packing` it is the library's own."""
    if packing is None:
        options |= {"scaling": scaling, "sliding_window": sliding_window}
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)  # type: ignore[return-value]
    if ignored := [name for name in UNKNOWN if options.get(name) is not None]:
        raise NotImplementedError(f"attention with {', '.join(ignored)}")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    query, key = query.to(value.dtype), key.to(value.dtype)  # under autocast, rotary positions make float32 of bfloat16
    layer: Any = module.layer_idx
    return packing.attend(layer, query, key, value, scale, sliding_window), None


AttentionInterface.register(ATTENTION, packed_attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


def run_packed(module: nn.Module, ids: Tensor, positions: Tensor, packing: Prompting | Decoding, **options: Any) -> Any:
    """The output of a language model, or of its trunk, for the packed tokens `ids` (N,) at `positions` (N,)."""
    if isinstance(packing, Prompting) and ids.device.type == "cpu":  # oneDNN keeps a plan of every length it meets
        ids, positions = (pad(x, (0, -len(x) % ROUND_TO)) for x in (ids, positions))
    mask = torch.empty((1, 1, 1, 1), device=ids.device)  # taken for a finished mask, so that the library makes none
    row, places = ids.unsqueeze(0), positions.unsqueeze(0)
    return module(input_ids=row, attention_mask=mask, position_ids=places, use_cache=False, packing=packing, **options)


def can_pack(lm: PreTrainedModel) -> bool:
    """Whether the model takes its attention from the registry; only a probe (`use_packing`) shows whether that is enough."""
    return bool(getattr(lm, "_supports_attention_backend", False) and getattr(lm, "_supports_sdpa", False))
