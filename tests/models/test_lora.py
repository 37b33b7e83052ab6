"""LoRA: adapters compute what the paper says, the reference is the disabled adapter, only adapters and heads are trained."""

import logging
import re

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from rlhf_dialog.errors import UserError
from rlhf_dialog.models.cpu_linear import use_onednn
from rlhf_dialog.models.loading import load_causal_lm, load_models
from rlhf_dialog.models.lora import (
    add_adapters,
    base_parameters,
    lora_layers,
    target_names,
    trainable_parameters,
)
from rlhf_dialog.models.packing import ATTENTION
from rlhf_dialog.models.policy import teacher_forced
from rlhf_dialog.models.saved_agent import save_agent
from rlhf_dialog.models.token_batch import TokenBatch
from rlhf_dialog.models.weights import load_module
from rlhf_dialog.runs import identity
from rlhf_dialog.runs.checkpoint import newest_checkpoint
from rlhf_dialog.runs.training_state import load_weights, save_training
from tests.parts.adapters import ALPHA, R, build, config_of, disturb
from tests.parts.saved_models import CPU, EPISODES, MASK, PROMPT, RESPONSE, save
from tests.parts.tiny import byte_tokenizer, gpt2, llama
from tests.parts.token_batches import critic_values
from tests.parts.trainers import parameters, settings


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {
        "gpt2": save(root / "gpt2", gpt2(initializer_range=0.3)),
        "llama": save(root / "llama", llama(initializer_range=0.3)),
        "other": save(root / "other", gpt2(5, initializer_range=0.3)),
    }


def modules_of(trainer):
    return {name: engine.module for name, engine in trainer.engines.items()}


@pytest.mark.parametrize(("kind", "onednn"), [("gpt2", True), ("llama", False)])
def test_an_adapter_is_the_papers_change_of_the_weights(paths, kind, onednn):
    """arXiv 2106.09685, section 4.1, by hand: W + B A alpha / r in a plain model; packed and fused layers below."""
    models = load_models(config_of(paths[kind]), CPU)
    use_onednn(models.policy.lm, onednn)
    disturb(models.policy)
    by_hand = AutoModelForCausalLM.from_pretrained(paths[kind]).eval()
    values = dict(models.policy.lm.named_parameters())
    count = 0
    for name, weight in by_hand.named_parameters():
        layer = name.removesuffix(".weight")
        if f"{layer}.lora_A.policy.weight" in values:
            change = values[f"{layer}.lora_B.policy.weight"] @ values[f"{layer}.lora_A.policy.weight"] * ALPHA / R
            weight.data += change.T if kind == "gpt2" else change
            count += 1
    assert count == len(lora_layers(models.policy.lm)) == {"gpt2": 8, "llama": 14}[kind]
    assert models.policy.lm.config._attn_implementation == ATTENTION
    found = teacher_forced(models.policy, TokenBatch(*EPISODES), 1.0)
    for row in range(2):
        ids = torch.cat([PROMPT[row][MASK[row]], RESPONSE[row]]).unsqueeze(0)
        logprobs = by_hand(ids).logits.log_softmax(-1)[0, -4:-1]
        assert torch.allclose(found.logprobs[row], logprobs.gather(1, RESPONSE[row].unsqueeze(1)).squeeze(1), atol=1e-4)
    start = AutoModelForCausalLM.from_pretrained(paths[kind]).eval()(ids).logits
    assert (start - by_hand(ids).logits).abs().max() > 0.1


def test_the_reference_and_the_identity_are_those_of_the_policy_without_its_adapter(paths):
    models = load_models(config_of(paths["llama"]), CPU)
    start = load_causal_lm(paths["llama"], "model_path")
    expected = teacher_forced(type(models.policy)(start), TokenBatch(*EPISODES), 1.0).logprobs
    fresh = teacher_forced(models.policy, TokenBatch(*EPISODES), 1.0).logprobs
    assert torch.equal(fresh, expected)  # zero-initialised: the KL of the start is 0
    disturb(models.policy)
    found = teacher_forced(models.ref_policy, TokenBatch(*EPISODES), 1.0).logprobs
    assert torch.equal(found, expected)
    assert not found.requires_grad
    assert models.ref_policy.lm is models.policy.lm
    assert identity.model_fingerprint(models.policy.lm) == identity.model_fingerprint(start)
    changed = teacher_forced(models.policy, TokenBatch(*EPISODES), 1.0).logprobs
    assert changed.requires_grad
    assert (changed - expected).abs().max() > 0.01


def test_adapters_of_a_base_in_16_bits_are_float32_and_the_base_stays():
    lm, start = (gpt2(initializer_range=0.3).bfloat16() for _ in range(2))
    add_adapters(lm, ["policy"], R, ALPHA, None, seed=0)
    assert {p.dtype for name, p in lm.named_parameters() if ".lora_" in name} == {torch.float32}
    base = dict(base_parameters(lm))
    assert base.keys() == dict(start.named_parameters()).keys()
    assert all(torch.equal(p, base[name]) for name, p in start.named_parameters())


def test_gradients_reach_each_adapter_from_its_own_loss_alone(paths):
    """Forward of policy and critic, and only then backward: peft's own switch would lose the policy's gradient."""
    together = load_models(config_of(paths["gpt2"], use_share_model=False, activation_checkpointing=True), CPU)
    apart = load_models(config_of(paths["gpt2"], use_share_model=False), CPU)
    for models in (together, apart):
        for module in (models.policy, models.critic):
            disturb(module)
    logprobs = teacher_forced(together.policy, TokenBatch(*EPISODES), 1.0).logprobs
    values = critic_values(together.critic, TokenBatch(*EPISODES))
    teacher_forced(together.ref_policy, TokenBatch(*EPISODES), 1.0)
    logprobs.sum().backward()
    values.sum().backward()
    teacher_forced(apart.policy, TokenBatch(*EPISODES), 1.0).logprobs.sum().backward()
    assert all(p.grad is None for p in trainable_parameters(apart.critic).values())
    critic_values(apart.critic, TokenBatch(*EPISODES)).sum().backward()
    for name in ("policy", "critic"):
        found, expected = (
            {k: p.grad for k, p in trainable_parameters(getattr(m, name)).items()} for m in (together, apart)
        )
        assert set(found) == set(expected)
        assert len(expected) == {"policy": 16, "critic": 18}[name]
        for key, gradient in expected.items():
            assert gradient.norm() > 0, key
            assert torch.allclose(found[key], gradient, rtol=1e-4, atol=1e-6), key
    assert not [n for n, p in together.policy.lm.named_parameters() if p.grad is not None and "lora" not in n]


@pytest.mark.slow
def test_training_moves_adapters_and_heads_and_nothing_else(paths):
    trainer = build(paths["gpt2"], use_share_model=False, kl_coef=0.1)
    before = {name: parameters(module) for name, module in modules_of(trainer).items()}
    first = trainer.step()
    assert abs(first["objective/kl_initial"]) < 1e-6
    assert abs(trainer.step()["objective/kl"]) > 1e-7
    for name, module in modules_of(trainer).items():
        own = trainable_parameters(module)
        foreign = {key for key in before[name] if key not in own and "lora" in key}
        assert foreign  # the other's adapter moves, by the other's optimizer
        for key, value in parameters(module).items():
            if key not in foreign:
                assert torch.equal(value, before[name][key]) == (key not in own), key


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_the_agent_is_merged_and_the_model_in_training_is_not(paths, kind, tmp_path):
    trainer = build(paths[kind])
    disturb(trainer.models.policy)
    before, state = parameters(trainer.models.policy), trainer.models.policy.lm.state_dict()
    save_agent(tmp_path / "agent", trainer.models.policy, trainer.models.tokenizer, trainer.config)
    assert list(state) == list(trainer.models.policy.lm.state_dict())
    assert all(torch.equal(before[name], value) for name, value in parameters(trainer.models.policy).items())
    merged, start = (AutoModelForCausalLM.from_pretrained(path).eval() for path in (tmp_path / "agent", paths[kind]))
    assert {n: p.shape for n, p in merged.named_parameters()} == {n: p.shape for n, p in start.named_parameters()}
    assert set(load_file(tmp_path / "agent/model.safetensors")) == set(load_file(f"{paths[kind]}/model.safetensors"))
    ids = RESPONSE
    assert torch.allclose(merged(ids).logits, trainer.models.policy.lm(ids).logits, atol=1e-4)
    assert not torch.allclose(merged(ids).logits, start(ids).logits, atol=1e-1)


@pytest.mark.slow
def test_weights_only_and_what_does_not_fit(paths, tmp_path):
    first, config = build(paths["gpt2"]), config_of(paths["gpt2"])
    disturb(first.models.policy)
    save_training(tmp_path, first.config, first.state_dict(), modules_of(first), first.optimizers)
    source = newest_checkpoint(tmp_path)
    assert set(load_file(source / "policy.safetensors")) == set(trainable_parameters(first.models.policy))
    second = build(paths["gpt2"], use_share_model=False)
    assert load_weights(source, modules_of(second), CPU) == ["critic"]
    ours, theirs = (teacher_forced(t.models.policy, TokenBatch(*EPISODES), 1.0).logprobs for t in (first, second))
    assert torch.equal(ours, theirs)
    with pytest.raises(UserError, match=r"size mismatch for lm.*lora_A.*\[4, 32\]"):
        load_weights(source, {"policy": load_models(config.model_copy(update={"lora_r": 2}), CPU).policy}, CPU)
    other = modules_of(build(paths["gpt2"], lora_target_modules=["c_attn"]))
    with pytest.raises(UserError, match="policy differs in lm"):
        load_weights(source, other, CPU)
    with pytest.raises(ValueError, match=r"the adapters differ from those of this run: lm.*mlp"):
        load_module(other["policy"], source / "policy.safetensors", CPU)
    whole = load_models(settings(model_path=paths["gpt2"]), CPU)
    with pytest.raises(UserError, match="does not fit"):
        load_weights(source, {"policy": whole.policy}, CPU)
    save_training(tmp_path / "whole", first.config, first.state_dict(), {"policy": whole.policy}, {})
    with pytest.raises(UserError, match=r"holds a whole model, but this run .use_lora. trains adapters"):
        load_weights(newest_checkpoint(tmp_path / "whole"), modules_of(second), CPU)


def test_adapters_start_from_the_seed_and_draw_nothing_else():
    drawn, found = [], []
    for seed in (0, 0, 1):
        lm = gpt2()
        torch.manual_seed(3)
        add_adapters(lm, ["policy", "critic"], R, ALPHA, None, seed)
        drawn.append(torch.rand(()).item())
        found.append({name: p for name, p in lm.named_parameters() if "lora_A" in name})
    assert len(set(drawn)) == 1
    assert all(torch.equal(p, found[1][name]) for name, p in found[0].items())
    assert not any(torch.equal(p, found[2][name]) for name, p in found[0].items())


def test_another_reference_is_a_second_model_and_is_told(paths, caplog):
    with caplog.at_level(logging.WARNING):
        models = load_models(config_of(paths["gpt2"], ref_model=paths["other"]), CPU)
    assert "a second model is kept in memory for the reference" in caplog.text
    assert models.ref_policy.lm is not models.policy.lm
    assert not any(p.requires_grad for p in models.ref_policy.parameters())
    assert all(p.requires_grad for p in trainable_parameters(models.policy).values())
    caplog.clear()
    same = load_models(config_of(paths["gpt2"], ref_model=paths["gpt2"]), CPU)
    assert same.ref_policy.lm is same.policy.lm
    assert not caplog.text


def test_targets(paths):
    lm = load_causal_lm(paths["llama"], "model_path")
    assert len(target_names(lm, ["q_proj", "mlp.up_proj"])) == 4
    assert not [name for name in target_names(lm, None) if "lm_head" in name]
    for wrong in ("lm_head", "proj", "embed_tokens"):
        with pytest.raises(UserError, match=f"lora_target_modules: '{wrong}' .* use one of down_proj, gate"):
            target_names(lm, ["q_proj", wrong])


HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
SIZES = {"vocab_size": 259, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, **HEADS}
MAMBA = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_chunk_size": 16}
HYBRIDS = {
    "falcon_h1": SIZES | MAMBA | {"mamba_n_groups": 1},
    "qwen3_next": SIZES
    | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}
    | {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
    | {"layer_types": ["linear_attention", "full_attention"]},
}


def hybrid(kind):
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **HYBRIDS[kind]))


def test_what_peft_refuses_is_left_out_and_named(caplog):
    lm = hybrid("falcon_h1")
    with caplog.at_level(logging.INFO):
        add_adapters(lm, ["policy", "critic"], R, ALPHA, None, seed=0)
    (text,) = [record.getMessage() for record in caplog.records if record.name.startswith("rlhf_dialog")]
    assert "out_proj of FalconH1ForCausalLM" in text
    adapted = {name for name, layer in lm.named_modules() if hasattr(layer, "lora_A")}
    linear = {name for name, layer in lm.model.named_modules() if isinstance(layer, torch.nn.Linear)}
    assert {name.rsplit(".", 1)[-1] for name in adapted} == {
        *("q_proj", "k_proj", "v_proj", "o_proj", "in_proj", "gate_proj", "up_proj", "down_proj")
    }
    assert len(linear) > len(adapted)
    with pytest.raises(UserError, match=r"lora_target_modules: .*out_proj.*leave it out"):
        add_adapters(hybrid("falcon_h1"), ["policy"], R, ALPHA, ["q_proj", "out_proj"], seed=0)


def test_linear_layers_beside_experts_get_the_adapters_that_are_asked_for():
    lm = hybrid("qwen3_next")
    names = target_names(lm, None)
    assert any("shared_expert.gate_proj" in name for name in names)
    add_adapters(lm, ["policy"], R, ALPHA, None, seed=0)
    assert sorted(name for name, layer in lm.named_modules() if hasattr(layer, "lora_A")) == sorted(names)


@pytest.mark.parametrize(("tied", "noise"), [(True, 1e-9), (False, 0.0)])
def test_an_end_token_that_was_never_trained_is_told(tmp_path, caplog, tied, noise):
    lm = llama(tie_word_embeddings=tied)
    end = byte_tokenizer().convert_tokens_to_ids("<EOU>")
    load_models(config_of(save(tmp_path, lm)), CPU)
    assert not caplog.text
    for weight in (lm.lm_head.weight, lm.model.embed_tokens.weight):
        weight.data[[7, 9]] = weight.data[end] + noise
    load_models(config_of(save(tmp_path, lm)), CPU)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert re.search(r"'<EOU>' was never trained .* 2 others", record.getMessage())
    caplog.clear()
    load_models(config_of(save(tmp_path, lm), use_lora=False), CPU)
    assert not caplog.text
