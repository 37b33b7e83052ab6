"""Load the policy, its critic, its frozen reference, and the tokenizer; dropout is off in all models.

Every model is tested when it is loaded: whether it computes packed rows, otherwise whether it may be padded on the left.
"""

import copy
import logging
import os
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.activations import NewGELUActivation
from transformers.modeling_layers import GradientCheckpointingLayer

from rlhf_dialog.config.registry import ModelFactory
from rlhf_dialog.config.schema import ClassConfig, Config
from rlhf_dialog.data.agent_template import own_template
from rlhf_dialog.data.chat_template import fix_date, separator_of
from rlhf_dialog.data.dialogue import CHAT_TEMPLATE
from rlhf_dialog.errors import UserError
from rlhf_dialog.found_files import not_trusted
from rlhf_dialog.models import lora, network, quantized
from rlhf_dialog.models.cpu_linear import use_onednn
from rlhf_dialog.models.load_checks import SingleRowPredictions, check_left_padding, trial_form, use_packing
from rlhf_dialog.models.network import num_embeddings, num_logits, num_token_ids
from rlhf_dialog.models.policy import Critic, DisabledAdapter, Policy, num_positions
from rlhf_dialog.models.precision import HALF, autocast_of, narrow, set_float32_products
from rlhf_dialog.models.pretrained import load_pretrained, num_ids, readable, try_template
from rlhf_dialog.models.trunk import trunk_of

logger = logging.getLogger(__name__)
CPU = torch.device("cpu")
PROBE = "Hello , how are you ? I'd like 12 of them ."
WIDE_PROBE = "".join(map(chr, range(32, 127))) + " Où est la gare ? Grüße — «да» 你好 🙂\n"


def recompute_layers(trunk: nn.Module) -> None:
    """Make every layer of the trunk recompute itself in the backward pass. Raises UserError when the model has no such layers."""
    layers = [module for module in trunk.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise UserError(
            f"activation_checkpointing: {type(trunk).__name__} has no layers that can be recomputed; set it to false"
        )
    for layer in layers:
        layer.forward = partial(_recompute, layer)  # type: ignore[method-assign]


def _recompute(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The layer's own forward under checkpointing; without gradients, just the forward."""
    forward = partial(type(layer).forward, layer)
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    if adapted := lora.lora_layers(layer):  # recomputed with the adapter that is selected now
        adapter = lora.selection(adapted[0])
        options["context_fn"] = lambda: (nullcontext(), lora.select_adapter(layer, adapter))
    return checkpoint(forward, *args, **options, **kwargs)


@dataclass
class Models:
    """The models of a run.

    `critic` is the separate critic; None where the policy has the value head or no critic is trained. `ref_policy` is None
    under `reference: false`.
    """

    policy: Policy
    critic: Critic | None
    ref_policy: Policy | None
    tokenizer: PreTrainedTokenizerBase


@dataclass(frozen=True)
class Form:
    """The form in which a model is loaded.

    `kept_types`: those of its file that linear layers keep under autocast, of a model that is not trained; all else is float32.
    `only_trunk`: its head is not read, and may be missing. `in_4bit`: its linear layers are quantized.
    """

    packing: bool = True
    device: torch.device = CPU
    kept_types: tuple[torch.dtype, ...] = ()
    only_trunk: bool = False
    in_4bit: bool = False


def load_causal_lm(
    path: str,
    key: str,
    trust_remote_code: bool = False,
    allow_pickle_weights: bool = False,
    form: Form = Form(),
    trusted_classes: Sequence[ClassConfig | None] | None = (),
) -> PreTrainedModel:
    """A causal LM in float32 and eval mode (dropout off), which packs rows if it can and its `form` allows it.

    The folder of an agent with a network of the user's is read with the registered class, where its id and args are among the
    `trusted_classes` (None: all are trusted). Raises UserError when the model cannot be loaded, when a weight is NaN or infinite,
    or when it can be neither packed nor padded on the left.
    """
    if (spec := network.spec_in(path)) is not None:
        if trusted_classes is not None and spec not in trusted_classes and ModelFactory.find(spec.id):
            raise not_trusted(Path(path) / network.AGENT_FILE, f"model_class.id: {spec.id} is code of your own")
        lm = network.load_policy(spec, path, key)
    else:
        lm = load_pretrained(
            AutoModelForCausalLM,
            path,
            key,
            dtype=torch.float32,
            trust_remote_code=trust_remote_code,
            use_safetensors=None if allow_pickle_weights else True,
            only_trunk=form.only_trunk,
            **(quantized.loading_options(form.device) if form.in_4bit else {}),
        ).eval()
        if form.in_4bit:
            quantized.settle(lm)
        head, embedding = lm.get_output_embeddings(), lm.get_input_embeddings()
        is_tied = head is not None and head.weight is embedding.weight
        if head is not None and getattr(lm.config, "tie_word_embeddings", None) is (not is_tied):
            lm.config.tie_word_embeddings = is_tied  # other programs would tie two matrices, or lack one
    if damaged := [name for name, weight in lora.base_parameters(lm) if not torch.isfinite(weight).all()]:
        raise UserError(f"{key}: the weights in '{path}' are damaged: {damaged[0]} holds NaN or infinity")
    if form.kept_types:
        narrow(lm.requires_grad_(False), form.kept_types)
    lm.to(form.device)  # type: ignore[arg-type]
    with nullcontext() if spec else readable(path, key, "a causal LM"):
        return prepare_lm(lm, path, key, form.packing, own_tokenizer(path, key, trust_remote_code))


def prepare_lm(
    lm: PreTrainedModel, path: str, key: str, packing: bool, tokenizer: PreTrainedTokenizerBase | None = None
) -> PreTrainedModel:
    """The model in the form in which it is fastest. Raises UserError when it can be neither packed nor padded on the left."""
    ends = getattr(getattr(lm, "generation_config", None), "eos_token_id", None) or []
    if not all(type(end) is int for end in (ends if isinstance(ends, list) else [ends])):
        raise UserError(f"{key}: eos_token_id in generation_config.json of '{path}' is {ends!r:.100}, not token ids")
    fuse_gelu(lm)
    use_onednn(lm)
    with trial_form(lm):
        alone = SingleRowPredictions(lm, tokenizer)
        if not (packing and use_packing(lm, alone)):
            check_left_padding(lm, alone, path, key)
    return lm


def own_tokenizer(path: str, key: str, trust_remote_code: bool) -> PreTrainedTokenizerBase | None:
    """The tokenizer beside a model, None where there is none."""
    try:
        return read_tokenizer(path, key, trust_remote_code)
    except UserError:
        return None


def load_policy_lm(config: Config, form: Form) -> PreTrainedModel:
    """The language model that a run trains, before any update: that of `model_path`, or the network of `model_class`.

    The network starts with the weights of `model_path` if that is an agent with this network, else as its class makes it with
    the run's seed. Raises UserError as `load_causal_lm`.
    """
    spec, path = config.model_class, config.model_path
    if spec is None:
        form = replace(form, in_4bit=config.load_in_4bit)
        return load_causal_lm(path, "model_path", config.trust_remote_code, config.allow_pickle_weights, form)
    found = network.spec_in(path)
    if found is not None and found.id == spec.id:
        lm = network.load_policy(spec, path, "model_path")
    else:
        lm = network.new_policy(spec, "model_class", config.seed)
        logger.info("model_class: '%s' starts as its class makes it; model_path '%s' is not its agent", spec.id, path)
    return prepare_lm(lm.to(form.device), spec.id, "model_class", config.packing)  # type: ignore[arg-type]


def fuse_gelu(lm: PreTrainedModel) -> None:
    """GPT-2's activation in one operation instead of eight; the same function."""
    for module in list(lm.modules()):
        for name, child in module.named_children():
            if type(child) is NewGELUActivation:
                setattr(module, name, nn.GELU(approximate="tanh"))


def read_tokenizer(
    path: str, key: str, trust_remote_code: bool = False, as_saved: bool = False
) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or Hub name. Raises UserError when there is none, it is empty, or its template does not end.

    (For some model folders without a tokenizer, transformers makes an empty one.) An agent's has the chat template that it had
    before the agent was saved; `as_saved`: the agent's, which other programs read.
    """
    tokenizer = load_pretrained(AutoTokenizer, path, key, trust_remote_code=trust_remote_code)
    with readable(path, key, "a tokenizer"):
        ids = tokenizer(PROBE, add_special_tokens=False)["input_ids"]
        tokenizer.decode(ids)
    if not set(ids) - {tokenizer.unk_token_id}:
        raise UserError(
            f"{key}: '{path}' holds no tokenizer (a plain sentence gives no tokens); give a folder with a tokenizer"
        )
    names = tokenizer.chat_template if isinstance(tokenizer.chat_template, dict) else ()
    if bad := [name for name in names if name != os.path.basename(name) or name == ".."]:  # they become file names
        raise UserError(
            f"{key}: the tokenizer of '{path}' has a chat template named {bad[0]!r}, which is a path out of its folder; rename it"
        )
    try_template(tokenizer, path, key)
    if not as_saved:
        tokenizer.chat_template = own_template(tokenizer.chat_template)
    return tokenizer


def load_tokenizer(config: Config, lm: PreTrainedModel) -> PreTrainedTokenizerBase:
    """The tokenizer of `env.args.tokenizer_path`; its chat template writes the day `date_string`.

    Raises UserError when its ids do not fit the model.
    """
    path = config.env.args.tokenizer_path or config.model_path
    tokenizer = read_tokenizer(path, "env.args.tokenizer_path", config.trust_remote_code)
    name = config.model_class.id if config.model_class else config.model_path
    _refuse_more_tokens(name, "env.args.tokenizer_path", tokenizer, lm)
    if path != config.model_path:
        _refuse_other_ids(config.model_path, "model_path", tokenizer, config)
    fix_date(tokenizer, config.date_string)
    return tokenizer


def _refuse_other_ids(path: str, key: str, tokenizer: PreTrainedTokenizerBase, config: Config) -> None:
    """Raises UserError when the model of `path` has a tokenizer of its own that gives other ids: it would read another text."""
    own = own_tokenizer(path, key, config.trust_remote_code)
    if own is None:
        logger.info("%s: '%s' has no tokenizer, so it is used without a comparison", key, path)
        return
    separator = separator_of(tokenizer, config.turn_separator)
    probes = [PROBE, WIDE_PROBE, *([] if separator == CHAT_TEMPLATE else [f" a {separator}"])]
    theirs, ours = (words(probes, add_special_tokens=False)["input_ids"] for words in (own, tokenizer))
    if theirs != ours:
        of_run = config.env.args.tokenizer_path or config.model_path
        remedy = "leave env.args.tokenizer_path out" if key == "model_path" else "use a model of the same family"
        raise UserError(
            f"{key}: the tokenizer of '{path}' gives other token ids than the run's, '{of_run}'", remedy=remedy
        )


def _refuse_more_tokens(name: str, key: str, tokenizer: PreTrainedTokenizerBase, lm: PreTrainedModel) -> None:
    """Raises UserError when the tokenizer has ids for which the model, `name`, has no embedding."""
    if num_ids(tokenizer) > num_embeddings(lm):
        what = (
            f"the tokenizer has {num_ids(tokenizer)} tokens, but the model '{name}' embeddings for {num_embeddings(lm)}"
        )
        raise UserError(what, where=key, remedy="use the model's own tokenizer, or a model of the same family")


def _load_critic(
    config: Config, tokenizer: PreTrainedTokenizerBase, form: Form, options: dict[str, Any]
) -> PreTrainedModel | None:
    """The model of `critic_path`; None without. Raises UserError when it reads other token ids than the policy."""
    if config.critic_path is None:
        return None
    lm = load_causal_lm(config.critic_path, "critic_path", form=replace(form, only_trunk=True), **options)
    check_length(lm, config, config.critic_path)
    _refuse_other_ids(config.critic_path, "critic_path", tokenizer, config)
    _refuse_more_tokens(config.critic_path, "critic_path", tokenizer, lm)
    return lm


def load_models(config: Config, device: torch.device) -> Models:
    """Policy, critic, reference and tokenizer of a run on `device`. Raises UserError before anything is trained."""
    set_float32_products(config, device)
    pickle, remote = config.allow_pickle_weights, config.trust_remote_code
    options: dict[str, Any] = {"trust_remote_code": remote, "allow_pickle_weights": pickle}
    options["trusted_classes"] = [config.model_class]
    amp = autocast_of(config, device)
    narrows = amp["use_amp"] and not (config.use_deepspeed or config.ref_ds_config)
    trained, frozen = Form(config.packing, device), Form(config.packing, device, HALF if narrows else ())
    # LoRA's base, which each token is multiplied with, has no other 16-bit type than that of the products
    base = replace(trained, kept_types=(amp["amp_dtype"],) if narrows and config.use_lora else ())
    lm = load_policy_lm(config, base)
    tokenizer = load_tokenizer(config, lm)
    check_length(lm, config)
    if config.ref_model not in (None, config.model_path, config.env.args.tokenizer_path):
        _refuse_other_ids(config.ref_model, "ref_model", tokenizer, config)
    ref_lm = _load_reference(config, lm, frozen, options)
    critic_lm = _load_critic(config, tokenizer, trained, options)
    policy, critic = build_trained(config, lm, amp, critic_lm)
    policy.num_ids = num_token_ids(lm, tokenizer)
    if config.use_lora:
        lora.warn_of_untrained_end(lm, tokenizer, config.turn_separator)
    ref_policy: Policy | None = None
    if config.reference:
        ref_policy = DisabledAdapter(lm, **amp) if ref_lm is None else Policy(ref_lm, **amp).requires_grad_(False)
        ref_policy.num_ids = policy.num_ids
    if narrows:
        narrow(lm, (amp["amp_dtype"],))
        if ref_lm is not None:
            narrow(ref_lm)
    policy.to(device).eval()
    return Models(policy, critic and critic.to(device).eval(), ref_policy and ref_policy.to(device).eval(), tokenizer)


def _load_reference(config: Config, lm: PreTrainedModel, form: Form, options: dict[str, Any]) -> PreTrainedModel | None:
    """The model of the reference; None when there is none, or when it is the policy without its adapter."""
    other = config.ref_model
    if not config.reference or (config.use_lora and other in (None, config.model_path)):
        return None
    ref_lm = load_causal_lm(other, "ref_model", form=form, **options) if other else copy.deepcopy(lm)
    if config.use_lora:
        logger.warning(
            "ref_model: '%s' is not model_path, so a second model is kept in memory for the reference", other
        )
    if num_logits(ref_lm) != num_logits(lm):
        what = f"'{other}' has another vocabulary size than model_path '{config.model_path}'"
        raise UserError(what, where="ref_model", remedy="use a reference of the same family")
    return ref_lm


def build_trained(
    config: Config, lm: PreTrainedModel, amp: dict[str, Any], critic_lm: PreTrainedModel | None = None
) -> tuple[Policy, Critic | None]:
    """The policy, and the separate critic if there is one.

    The critic is one of `critic_class`, or lies on `critic_lm`, else on a copy of the trunk, or with LoRA is an adapter on the
    same trunk.
    """
    uses_critic = config.estimator.needs_critic
    separate = uses_critic and not config.use_share_model
    reads_head, spec = uses_critic and config.critic_class is None and critic_lm is None, network.spec_of(lm)
    if reads_head and spec and not isinstance(lm.get_output_embeddings(), nn.Linear):
        raise UserError(
            f"model_class: '{spec.id}' has no get_output_embeddings() that returns the nn.Linear of its logits, whose input the "
            "critic reads; add it, or set critic_class, or an advantage_estimator without a critic"
        )
    if critic_lm is None:
        is_copy = separate and not config.use_lora and config.critic_class is None
        critic_lm = copy.deepcopy(lm) if is_copy else lm
    of_both: tuple[str | None, str | None] = (None, None)
    if config.use_lora:
        adapters = ["policy", "critic"] if separate else ["policy"]
        lora.add_adapters(lm, adapters, config.lora_r, config.lora_alpha, config.lora_target_modules, config.seed)
        of_both = ("policy", "critic")
    if config.activation_checkpointing:
        for trunk in {id(one): trunk_of(one) for one in (lm, critic_lm)}.values():
            recompute_layers(trunk)
    policy = Policy(lm, with_value_head=uses_critic and not separate, adapter=of_both[0], **amp)
    if config.critic_class is not None:
        return policy, network.new_critic(config.critic_class, config.seed, amp)
    return policy, Critic(critic_lm, adapter=of_both[1], **amp) if separate else None


def check_length(lm: PreTrainedModel, config: Config, path: str | None = None) -> None:
    """Raises UserError when prompt and response do not fit into the model's positions."""
    positions, wanted = num_positions(lm), config.max_prompt_length + config.max_new_tokens
    if positions and wanted > positions:
        raise UserError(
            f"max_prompt_length: {config.max_prompt_length} + max_new_tokens {config.max_new_tokens} = {wanted} tokens, but "
            f"the model '{path or config.model_path}' has {positions} positions; lower one of them"
        )


def trained_parameters(models: Iterable[nn.Module]) -> int:
    """The number of parameters that an optimizer updates."""
    return sum(p.numel() for model in models for p in lora.trainable_parameters(model).values())
