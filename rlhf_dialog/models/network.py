"""Networks that a user writes: built by `ModelFactory`, checked when they are loaded, saved as safetensors with their id.

docs/MODELS.md has the contract that they follow. B rows, L tokens, V vocabulary.
"""

import inspect
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import CausalLMOutputWithPast

from rlhf_dialog.config.registry import ModelFactory
from rlhf_dialog.config.schema import ClassConfig
from rlhf_dialog.errors import UserError
from rlhf_dialog.found_files import check_files
from rlhf_dialog.json_files import damage_as_user_error, load_json
from rlhf_dialog.models.load_report import check_same_names
from rlhf_dialog.models.logprobs import at_least_float32
from rlhf_dialog.models.masks import position_ids_of
from rlhf_dialog.models.policy import Critic, supported_options
from rlhf_dialog.models.pretrained import num_ids
from rlhf_dialog.models.token_batch import Packed
from rlhf_dialog.user_code import as_user_error

AGENT_FILE, WEIGHTS = "rlhf_dialog.json", "model.safetensors"
CONTRACT = "docs/MODELS.md has the contract"
UNFIT = (OSError, RuntimeError, ValueError, SafetensorError)  # what load_model raises


def num_embeddings(lm: PreTrainedModel) -> int:
    """The number of rows of the input embedding, or of logits of a user's network; token ids must be smaller."""
    if isinstance(lm, NetworkLM):
        return int(lm.config.vocab_size)
    embedding: Any = lm.get_input_embeddings()
    return int(embedding.weight.shape[0])


def num_logits(lm: PreTrainedModel) -> int:
    """The number of tokens among which the model chooses."""
    return num_embeddings(lm) if spec_of(lm) else int(lm.get_output_embeddings().out_features)


def num_token_ids(lm: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The number of ids that are tokens, where the model has logits of more; else None."""
    count = num_ids(tokenizer)
    return count if count < num_logits(lm) else None


class NetworkConfig(PreTrainedConfig):
    """Of an agent with a network of the user's; its id and args are in rlhf_dialog.json."""

    model_type = "rlhf_dialog_network"


AutoConfig.register(NetworkConfig.model_type, NetworkConfig)


class Trunk(nn.Module):
    """The network without its output embedding: what a value head reads."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, input_ids: Tensor, attention_mask: Tensor, use_cache: bool = False) -> tuple[Tensor]:
        """The input (B, L, H) of the output embedding."""
        hidden_states: list[Tensor] = []
        head: Any = output_embeddings(self.network)
        with head.register_forward_pre_hook(lambda _, args: hidden_states.append(args[0])):
            call(self.network, input_ids, attention_mask)
        return (hidden_states[0],)


class NetworkLM(PreTrainedModel):
    """A causal LM around a plain module, for everything that calls one as transformers does."""

    config_class = NetworkConfig
    base_model_prefix = "trunk"

    def __init__(self, network: nn.Module, vocab_size: int):
        config = NetworkConfig()
        config.vocab_size = vocab_size
        config.max_position_embeddings = getattr(network, "max_position_embeddings", None)
        super().__init__(config)
        self.trunk = Trunk(network)
        self.generation_config = None  # type: ignore[assignment]
        self.keeps_state = "past_key_values" in inspect.signature(network.forward).parameters

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool = False,
    ) -> CausalLMOutputWithPast:
        """Logits (B, L, V). `past_key_values` is what the network returned, or the ids (B, .) of all tokens before."""
        if past_key_values is not None and not self.keeps_state:
            input_ids = torch.cat([past_key_values, input_ids], dim=1)
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        options = {"past_key_values": past_key_values, "use_cache": use_cache} if self.keeps_state else {}
        output = call(self.trunk.network, input_ids, mask, **options)
        state = getattr(output, "past_key_values", None) if self.keeps_state else input_ids
        kept: Any = state if use_cache else None
        return CausalLMOutputWithPast(logits=logits_of(output), past_key_values=kept)

    def get_output_embeddings(self) -> Any:
        return output_embeddings(self.trunk.network)


class OwnCritic(Critic):
    """A separate critic that a user wrote."""

    def __init__(self, network: nn.Module, use_amp: bool = False, amp_dtype: torch.dtype = torch.bfloat16):
        nn.Module.__init__(self)
        self.trunk, self.use_amp, self.amp_dtype = Trunk(network), use_amp, amp_dtype
        self.adapter, self.value_head = None, None  # type: ignore[assignment]

    def forward(self, packed: Packed) -> Tensor:
        """Values (K,) before each target of `packed`; at least float32."""
        ids, mask = (packed.pad(x) for x in (packed.ids, torch.ones_like(packed.ids)))
        with torch.autocast(ids.device.type, self.amp_dtype, enabled=self.use_amp):
            values = call(self.trunk.network, ids, mask)  # type: ignore[arg-type]
        return at_least_float32(values.flatten().index_select(0, packed.kept_place))


def call(network: nn.Module, input_ids: Tensor, attention_mask: Tensor, **options: Any) -> Any:
    """The output of a user's `forward`, which gets `position_ids` if it takes them."""
    positions = position_ids_of(attention_mask)[:, -input_ids.shape[1] :]
    options |= supported_options(network, position_ids=positions)
    return network(input_ids=input_ids, attention_mask=attention_mask, **options)


def logits_of(output: Any) -> Tensor:
    """The logits of a user's `forward`: what it returned, or `.logits` of it."""
    return getattr(output, "logits", output)


def output_embeddings(network: nn.Module) -> nn.Linear | None:
    """The layer that computes the logits, where the network names it."""
    named = getattr(network, "get_output_embeddings", None)
    return named() if named is not None else None


def new_policy(spec: ClassConfig, key: str, seed: int = 0) -> PreTrainedModel:
    """The policy network as its class makes it with this seed, in eval mode; `key` is what named it.

    Raises UserError with what is missing in the contract.
    """
    network = _create(spec, key, seed)
    vocab_size = 1
    for _ in range(2):  # of id 0, which tells V, and of the last id, which must have an embedding too
        ids = torch.full((1, 3), vocab_size - 1)
        logits = logits_of(_call_forward(network, spec.id, key, ids))
        if not isinstance(logits, Tensor) or logits.dim() != 3 or logits.shape[:2] != ids.shape:
            raise UserError(
                f"{key}: forward of '{spec.id}' returns {_describe(logits)} for ids (1, 3), not logits (1, 3, V) or an object "
                f"with .logits; {CONTRACT}"
            )
        vocab_size = logits.shape[-1]
    takes = set(inspect.signature(network.forward).parameters)
    is_whole = isinstance(network, PreTrainedModel) and {"past_key_values", "use_cache"} <= takes
    lm: Any = network if is_whole and output_embeddings(network) is not None else NetworkLM(network, vocab_size)
    lm.network_class = spec
    return lm.eval()


def new_critic(spec: ClassConfig, seed: int, amp: dict[str, Any]) -> OwnCritic:
    """The critic of `critic_class`. Raises UserError with what is missing in the contract."""
    network = _create(spec, "critic_class", seed)
    ids = torch.zeros(2, 3, dtype=torch.long)
    values = _call_forward(network, spec.id, "critic_class", ids)
    if not isinstance(values, Tensor) or values.shape not in ((2, 3), (2, 3, 1)):
        raise UserError(
            f"critic_class: forward of '{spec.id}' returns {_describe(values)} for ids (2, 3), not values (2, 3); {CONTRACT}"
        )
    return OwnCritic(network, **amp)


def load_policy(spec: ClassConfig, folder: str, key: str) -> PreTrainedModel:
    """The policy network with the weights in an agent's folder. Raises UserError when they do not fit it."""
    lm = new_policy(spec, key)
    path = Path(folder).expanduser() / WEIGHTS
    with damage_as_user_error(f"{key}: '{path}' does not fit the network '{spec.id}': ", faults=UNFIT):
        missing, unexpected = load_model(own_network(lm), str(path), strict=False)
    check_same_names(own_network(lm), missing, unexpected, folder, key)
    return lm


def save_policy(lm: PreTrainedModel, target: Path) -> None:
    """Write the weights as safetensors under the network's own names, and a config.json."""
    if isinstance(lm, NetworkLM):
        save_model(lm.trunk.network, str(target / WEIGHTS))
        lm.config.save_pretrained(target)
    else:
        lm.save_pretrained(target)


def own_network(lm: nn.Module) -> nn.Module:
    """The module that the user's class made."""
    return lm.trunk.network if isinstance(lm, NetworkLM) else lm


def spec_of(lm: nn.Module) -> ClassConfig | None:
    """The id and args with which a user's network was built; None for a model of transformers."""
    return getattr(lm, "network_class", None)


def spec_in(folder: str) -> ClassConfig | None:
    """The `model_class` in an agent's folder; None where there is none, or where the file cannot be read.

    Raises UserError for a file that may not be opened (`found_files`).
    """
    check_files(folder)
    try:
        found = load_json(Path(folder).expanduser() / AGENT_FILE).get("model_class")
        return None if found is None else ClassConfig.model_validate(found)
    except (OSError, ValueError, AttributeError):  # a ValidationError is a ValueError
        return None


def _create(spec: ClassConfig, key: str, seed: int) -> nn.Module:
    if problem := ModelFactory.problem(spec.id, spec.args):
        where = " Name the file that registers it: --register train_ppo.py." if key.startswith("--") else ""
        raise UserError(f"{key}: {problem}{where}")
    with as_user_error(f"{key}: '{spec.id}'"), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would leave its seed on every GPU
        network = ModelFactory.create(spec.id, spec.args)
    if not isinstance(network, nn.Module):
        raise UserError(f"{key}: '{spec.id}' is {_describe(network)}, not a torch.nn.Module; {CONTRACT}")
    return network.eval()


@torch.no_grad()
def _call_forward(network: nn.Module, name: str, key: str, ids: Tensor) -> Any:
    with as_user_error(f"{key}: forward of '{name}' ({CONTRACT})", type(network)):
        return call(network, ids, torch.ones_like(ids))


def _describe(x: Any) -> str:
    return f"a tensor {tuple(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
