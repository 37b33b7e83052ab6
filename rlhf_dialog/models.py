"""The trained policy, its critic, its frozen reference, and the tokenizer; dropout is off in all of them.

B episodes, P prompt tokens, T response tokens, V vocabulary, H hidden width.
"""

import copy
import inspect
import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from rlhf_dialog.errors import UserError
from rlhf_dialog.hub import load_pretrained, warn_of_remote_code
from rlhf_dialog.schema import Config

logger = logging.getLogger(__name__)
PROBE = "Hello , how are you ? I'd like 12 of them ."


def position_ids_of(mask: Tensor) -> Tensor:
    """Positions counted over True tokens only: 0, 0, 0, 1, 2 for a prompt with two pads on the left. Same shape as `mask`."""
    return (mask.long().cumsum(dim=1) - 1).clamp(min=0)


def accepted(module: nn.Module, **options: Any) -> dict[str, Any]:
    """Those of the options that the module's forward takes by name."""
    parameters = inspect.signature(module.forward).parameters
    return {name: value for name, value in options.items() if name in parameters}


class Policy(nn.Module):
    """A causal LM, with a value head on its last hidden state when the trunk is shared with the critic."""

    def __init__(self, lm: PreTrainedModel, with_value_head: bool = False, use_amp: bool = False):
        super().__init__()
        self.lm, self.use_amp = lm, use_amp
        self.value_head = new_value_head(lm) if with_value_head else None

    def run(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, num_last: int, **options: Any
    ) -> Any:
        """The language model's own output; logits of at least the last `num_last` positions, in bfloat16 under `use_amp`."""
        options |= accepted(self.lm, position_ids=position_ids, logits_to_keep=num_last)
        with torch.autocast(input_ids.device.type, torch.bfloat16, enabled=self.use_amp):
            return self.lm(input_ids=input_ids, attention_mask=attention_mask.long(), **options)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, num_last: int) -> tuple[Tensor, Tensor | None]:
        """Logits (B, num_last, V) and values (B, num_last) at the last `num_last` positions; float32."""
        inputs = (input_ids, attention_mask, position_ids_of(attention_mask), num_last)
        if self.value_head is None:
            return self.run(*inputs, use_cache=False).logits[:, -num_last:].float(), None
        hidden: list[Tensor] = []
        hook = self.lm.get_output_embeddings().register_forward_pre_hook(lambda _, args: hidden.append(args[0]))
        with hook:
            logits = self.run(*inputs, use_cache=False).logits
        return logits[:, -num_last:].float(), self.value_head(hidden[0][:, -num_last:].float()).squeeze(-1)


class Critic(nn.Module):
    """The trunk of a causal LM with a value head: the separate critic of `use_share_model: false`."""

    def __init__(self, lm: PreTrainedModel, use_amp: bool = False):
        super().__init__()
        self.trunk, self.use_amp = lm.base_model, use_amp
        self.value_head = new_value_head(lm)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, num_last: int) -> Tensor:
        """Values (B, num_last) at the last `num_last` positions; float32."""
        options = accepted(self.trunk, position_ids=position_ids_of(attention_mask))
        with torch.autocast(input_ids.device.type, torch.bfloat16, enabled=self.use_amp):
            hidden = self.trunk(input_ids=input_ids, attention_mask=attention_mask.long(), use_cache=False, **options)[
                0
            ]
        return self.value_head(hidden[:, -num_last:].float()).squeeze(-1)


@dataclass
class Models:
    """What a run computes with. `critic` is the separate critic, None where the policy has the value head or none is trained."""

    policy: Policy
    critic: Critic | None
    ref_policy: Policy
    tokenizer: PreTrainedTokenizerBase


def new_value_head(lm: PreTrainedModel) -> nn.Linear:
    """A linear layer from the last hidden state to one number; it starts at zero, so that the first values are 0."""
    head = nn.Linear(lm.get_output_embeddings().in_features, 1)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


def load_causal_lm(
    path: str, key: str, trust_remote_code: bool = False, allow_pickle_weights: bool = False
) -> PreTrainedModel:
    """A causal LM in float32 and eval mode (dropout off). Raises UserError when it cannot be loaded or padded on the left."""
    lm = load_pretrained(
        AutoModelForCausalLM,
        path,
        key,
        dtype=torch.float32,
        trust_remote_code=trust_remote_code,
        use_safetensors=None if allow_pickle_weights else True,
    )
    lm.eval()
    check_left_padding(lm, path, key)
    return lm


def num_embeddings(lm: PreTrainedModel) -> int:
    """Rows of the input embedding: token ids must be smaller."""
    embedding: Any = lm.get_input_embeddings()
    return int(embedding.weight.shape[0])


@torch.no_grad()
def check_left_padding(lm: PreTrainedModel, path: str, key: str) -> None:
    """Neither padding on the left nor what follows may change what a model predicts. Raises UserError when it does."""
    if lm.get_output_embeddings() is None:
        raise UserError(
            f"{key}: '{path}' ({type(lm).__name__}) has no output embedding, so it is no causal LM that can be trained here"
        )
    policy = Policy(lm)
    ids = torch.arange(2, 10).unsqueeze(0) % num_embeddings(lm)
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), ids], dim=1)
    mask = torch.cat([torch.zeros(1, 3, dtype=torch.bool), torch.ones_like(ids, dtype=torch.bool)], dim=1)
    plain, _ = policy(ids, torch.ones_like(ids, dtype=torch.bool), num_last=4)
    shifted, _ = policy(padded, mask, num_last=4)
    difference = (plain.log_softmax(-1) - shifted.log_softmax(-1)).abs().max().item()
    if not difference < 1e-2:
        raise UserError(
            f"{key}: '{path}' ({type(lm).__name__}) changes its predictions by {difference:.2g} nats when a prompt is "
            "padded on the left, so batches of prompts would be wrong; use a model that takes position_ids"
        )
    continued, _ = policy(torch.cat([ids, ids[:, :2]], dim=1), torch.ones(1, 10, dtype=torch.bool), num_last=6)
    if not (plain.log_softmax(-1) - continued[:, :4].log_softmax(-1)).abs().max().item() < 1e-2:
        raise UserError(f"{key}: '{path}' ({type(lm).__name__}) looks at the tokens that follow, so it is no causal LM")


def read_tokenizer(path: str, key: str, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or Hub name. Raises UserError when there is none, or an empty one.

    transformers makes an empty tokenizer for some model folders that hold none.
    """
    tokenizer = load_pretrained(AutoTokenizer, path, key, trust_remote_code=trust_remote_code)
    if not set(tokenizer(PROBE, add_special_tokens=False)["input_ids"]) - {tokenizer.unk_token_id}:
        raise UserError(
            f"{key}: '{path}' holds no tokenizer (a plain sentence gives no tokens); name a folder that does"
        )
    names = tokenizer.chat_template if isinstance(tokenizer.chat_template, dict) else ()
    if bad := [name for name in names if name != os.path.basename(name) or name == ".."]:  # they become file names
        raise UserError(
            f"{key}: the tokenizer of '{path}' has a chat template named {bad[0]!r}, which leaves its folder"
        )
    return tokenizer


def load_tokenizer(config: Config, lm: PreTrainedModel) -> PreTrainedTokenizerBase:
    """The tokenizer of `env.args.tokenizer_path`. Raises UserError when its ids do not fit the model."""
    path = config.env.args.tokenizer_path or config.model_path
    tokenizer = read_tokenizer(path, "env.args.tokenizer_path", config.trust_remote_code)
    rows = num_embeddings(lm)
    if len(tokenizer) > rows:
        raise UserError(
            f"env.args.tokenizer_path: '{path}' has {len(tokenizer)} tokens, but the model '{config.model_path}' "
            f"has embeddings for {rows}; use the model's own tokenizer"
        )
    if path != config.model_path:
        _compare_with_own(tokenizer, path, config)
    return tokenizer


def _compare_with_own(tokenizer: PreTrainedTokenizerBase, path: str, config: Config) -> None:
    try:
        own = read_tokenizer(config.model_path, "model_path", config.trust_remote_code)
    except UserError:
        logger.info("the folder of the model has no tokenizer of its own; trusting env.args.tokenizer_path '%s'", path)
        return
    if own(PROBE)["input_ids"] != tokenizer(PROBE)["input_ids"]:
        raise UserError(
            f"env.args.tokenizer_path: '{path}' gives other token ids than the tokenizer in the model's folder "
            f"'{config.model_path}'; leave tokenizer_path out to use the model's own"
        )


def load_models(config: Config, device: torch.device) -> Models:
    """Policy, critic, reference and tokenizer of a run on `device`. Raises UserError before anything is trained."""
    pickle, remote = config.allow_pickle_weights, config.trust_remote_code
    if remote:
        tokenizer_path = config.env.args.tokenizer_path
        warn_of_remote_code(
            {"model_path": config.model_path, "ref_model": config.ref_model, "env.args.tokenizer_path": tokenizer_path}
        )
    lm = load_causal_lm(config.model_path, "model_path", remote, pickle)
    tokenizer = load_tokenizer(config, lm)
    check_length(lm, config)
    uses_critic = config.advantage_estimator == "gae"
    policy = Policy(lm, with_value_head=uses_critic and config.use_share_model, use_amp=config.use_amp)
    critic = None
    if uses_critic and not config.use_share_model:
        critic = Critic(copy.deepcopy(lm), config.use_amp).to(device)
    ref_lm = load_causal_lm(config.ref_model, "ref_model", remote, pickle) if config.ref_model else copy.deepcopy(lm)
    if ref_lm.get_output_embeddings().out_features != lm.get_output_embeddings().out_features:
        raise UserError(
            f"ref_model: '{config.ref_model}' has another vocabulary size than model_path '{config.model_path}'; "
            "use a reference of the same family"
        )
    ref_policy = Policy(ref_lm, use_amp=config.use_amp).requires_grad_(False)
    return Models(policy.to(device).eval(), critic and critic.eval(), ref_policy.to(device).eval(), tokenizer)


def check_length(lm: PreTrainedModel, config: Config) -> None:
    """Raises UserError when prompt and response do not fit into the model's positions."""
    positions = getattr(lm.config, "max_position_embeddings", None) or getattr(lm.config, "n_positions", None)
    wanted = config.max_prompt_length + config.max_new_tokens
    if positions and wanted > positions:
        raise UserError(
            f"max_prompt_length: {config.max_prompt_length} + max_new_tokens {config.max_new_tokens} = {wanted} tokens, but "
            f"the model '{config.model_path}' has {positions} positions; lower one of them"
        )


def trained_parameters(models: Iterable[nn.Module]) -> int:
    """The number of parameters that get a gradient."""
    return sum(p.numel() for model in models for p in model.parameters() if p.requires_grad)
