"""A base in 4 bits: it computes with the dequantized weights, gradients pass after a rollout, and the agent is merged into it."""

import json
import logging
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from rlhf_dialog.errors import UserError
from rlhf_dialog.models.chat_agent import ChatAgent
from rlhf_dialog.models.loading import load_causal_lm, load_models
from rlhf_dialog.models.lora import add_adapters, merged_state, trainable_parameters
from rlhf_dialog.models.saved_agent import save_agent, state_to_save
from rlhf_dialog.runs.identity import model_fingerprint
from tests.parts import adapters
from tests.parts.adapters import ALPHA, R, disturb
from tests.parts.saved_models import CPU, RESPONSE, save
from tests.parts.tiny import gpt2, llama

bitsandbytes = pytest.importorskip("bitsandbytes")
# wide enough for what bitsandbytes does on a CPU with AVX512-BF16
KINDS = {"gpt2": partial(gpt2, n_embd=64), "llama": partial(llama, hidden_size=64, intermediate_size=128)}


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {kind: save(root / kind, new(initializer_range=0.3)) for kind, new in KINDS.items()}


config_of = partial(adapters.config_of, load_in_4bit=True)
build = partial(adapters.build, load_in_4bit=True)


def in_4bit_by_hand(path):
    """The model with each linear layer of its trunk quantized to nf4, blocks of 64, scales in 8 bits, and back again."""
    lm = AutoModelForCausalLM.from_pretrained(path).eval()
    count = 0
    for name, layer in lm.named_modules():
        if isinstance(layer, torch.nn.Linear | Conv1D) and name != "lm_head":
            weight = layer.weight.data.T if isinstance(layer, Conv1D) else layer.weight.data
            nf4 = bitsandbytes.functional.quantize_4bit(
                weight.contiguous(), blocksize=64, compress_statistics=True, quant_type="nf4"
            )
            weight = bitsandbytes.functional.dequantize_4bit(*nf4)
            layer.weight.data = weight.T.contiguous() if isinstance(layer, Conv1D) else weight
            count += 1
    assert count == {"gpt2": 8, "llama": 14}[lm.config.model_type]
    return lm


@pytest.mark.parametrize("kind", ["gpt2", pytest.param("llama", marks=pytest.mark.slow)])
def test_after_a_rollout_each_adapter_gets_the_gradient_of_the_dequantized_model(paths, kind):
    """On a CPU with AVX512-BF16 the first prediction in eval mode repacked the weights, and from then on no gradient passed."""
    trainer = build(paths[kind])
    trainer.step()
    lm = trainer.models.policy.lm
    by_hand = in_4bit_by_hand(paths[kind])
    add_adapters(by_hand, ["policy"], R, ALPHA, None, trainer.config.seed)
    disturb(trainer.models.policy)
    ours, theirs = ({name: p for name, p in module.named_parameters() if "lora_" in name} for module in (lm, by_hand))
    for name, p in theirs.items():
        p.data.copy_(ours[name])
    with torch.no_grad():  # a layer sees one row, as in sampling
        assert torch.allclose(lm(RESPONSE[:1, :1]).logits, by_hand(RESPONSE[:1, :1]).logits, atol=1e-4)
    for rows in (1, 2, 64):
        ids = torch.arange(rows)[None] * 7 % 250  # rows of a layer's input are tokens
        for module, parameters in ((lm, ours), (by_hand, theirs)):
            for p in parameters.values():
                p.grad = None
            module(ids).logits.log_softmax(-1)[..., 3].sum().backward()
        assert ours.keys() == theirs.keys()
        largest = max(p.grad.abs().max() for p in theirs.values())
        for name, p in theirs.items():
            assert p.grad.norm() > 0 or (rows == 1 and any(x in name for x in ("q_proj", "k_proj"))), name
            assert ours[name].grad is not None, name
            assert torch.allclose(ours[name].grad, p.grad, rtol=1e-3, atol=1e-5 * largest), (name, rows)
    assert not any(
        layer.support_avx512bf16_for_cpu for layer in lm.modules() if isinstance(layer, bitsandbytes.nn.Linear4bit)
    )


@pytest.mark.parametrize(
    ("kind", "dtype"), [pytest.param("gpt2", "float32", marks=pytest.mark.slow), ("llama", "bfloat16")]
)
def test_the_agent_is_a_plain_folder_of_the_dequantized_weights_and_the_adapters(paths, kind, dtype, tmp_path, caplog):
    """Also of layers without an adapter; the others of the start are kept as they are."""
    start = AutoModelForCausalLM.from_pretrained(paths[kind]).to(getattr(torch, dtype))
    path = save(tmp_path / "start", start)
    targets = {"gpt2": ["c_attn"], "llama": ["q_proj", "v_proj"]}[kind]
    config = config_of(path, lora_target_modules=targets)
    models = load_models(config, CPU)
    disturb(models.policy)
    with caplog.at_level(logging.INFO):
        save_agent(tmp_path / "agent", models.policy, models.tokenizer, config)
    assert "4 bits" in caplog.text
    found, stored = (load_file(f"{tmp_path}/{name}/model.safetensors") for name in ("agent", "start"))
    assert {n: (x.shape, x.dtype) for n, x in found.items()} == {n: (x.shape, x.dtype) for n, x in stored.items()}
    by_hand = in_4bit_by_hand(path)
    add_adapters(by_hand, ["policy"], R, ALPHA, targets, 0)
    disturb(SimpleNamespace(named_parameters=by_hand.named_parameters, adapter="policy"))
    expected = merged_state(by_hand, "policy")
    exact = {"rtol": 1e-2, "atol": 1e-3} if dtype == "bfloat16" else {"rtol": 1e-5, "atol": 1e-6}
    for name, x in found.items():
        is_linear = any(part in name for part in ("proj.weight", "c_attn.weight", "c_proj.weight", "c_fc.weight"))
        assert torch.allclose(x.float(), expected[name], **exact), name
        assert torch.equal(x, stored[name]) != is_linear, name
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "bitsandbytes", None)  # a person who chats with the agent needs none
        agent = ChatAgent.load(tmp_path / "agent", device="cpu")
        assert isinstance(agent.chat("Hello"), str)
    logits = models.policy.lm(RESPONSE).logits
    assert torch.allclose(agent.policy.lm(RESPONSE).logits, logits, atol=1e-4 if dtype == "float32" else 0.2)


def test_a_small_change_is_not_rounded_away(paths, tmp_path):
    """Compared with what was trained, the dequantized weights: their distance from the checkpoint would hide the change."""
    path = save(tmp_path / "start", AutoModelForCausalLM.from_pretrained(paths["llama"]).bfloat16())
    config = config_of(path)
    models = load_models(config, CPU)
    for name, p in trainable_parameters(models.policy).items():
        if "lora_B" in name:
            torch.nn.init.normal_(p, std=1e-5)
    state = state_to_save(models.policy, config)
    assert {x.dtype for name, x in state.items() if "proj" in name} == {torch.float32}
    assert state["model.norm.weight"].dtype == torch.bfloat16


@pytest.mark.slow
def test_the_fingerprint_is_that_of_the_dequantized_weights(paths, tmp_path):
    config = config_of(paths["llama"])
    lm = load_models(config, CPU).policy.lm
    assert model_fingerprint(lm) == model_fingerprint(load_models(config, CPU).policy.lm)
    assert model_fingerprint(lm) == model_fingerprint(in_4bit_by_hand(paths["llama"]))
    assert model_fingerprint(lm) != model_fingerprint(load_causal_lm(paths["llama"], "model_path"))
    larger = AutoModelForCausalLM.from_pretrained(paths["llama"])
    larger.model.layers[1].mlp.up_proj.weight.data *= 3  # the same 4 bits with other scales
    other = load_models(config_of(save(tmp_path, larger)), CPU).policy.lm
    assert model_fingerprint(lm) != model_fingerprint(other)


def test_what_cannot_be_loaded(paths, tmp_path, monkeypatch):
    lm = llama()
    lm.model.layers[1].mlp.up_proj.weight.data[3, 5] = float("nan")
    with pytest.raises(UserError, match=r"damaged: model.layers.1.mlp.up_proj.weight"):
        load_models(config_of(save(tmp_path / "damaged", lm)), CPU)
    for method in ("mxfp4", "bitsandbytes"):  # the first is made plain where it is loaded without the key
        folder = Path(save(tmp_path / method, llama()))
        config = json.loads((folder / "config.json").read_text())
        config["quantization_config"] = {"quant_method": method, "load_in_4bit": True}
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(
            UserError, match=rf"model_path: .*{method} weights, .*again; give the model that it was made from"
        ):
            load_models(config_of(str(folder)), CPU)
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(UserError, match="load_in_4bit: the package bitsandbytes is not installed"):
        load_models(config_of(paths["llama"]), CPU)


@pytest.mark.slow
@pytest.mark.parametrize("in_4bit", [True, False])
def test_no_program_of_the_hub_runs(paths, tmp_path, in_4bit):
    """With the package `kernels`, bitsandbytes would fetch one and run it, where the processor has AVX512-BF16."""
    fake = f"def get_kernel(*_, **__):\n    open({str(tmp_path / 'ran')!r}, 'w')\n"
    (tmp_path / "kernels.py").write_text(fake, encoding="utf-8")
    script = (
        "from tests.parts.trainers import settings\n"
        "from rlhf_dialog.models.loading import load_models\n"
        "import torch\n"
        f"load_models(settings(model_path={paths['llama']!r}, use_lora=True, load_in_4bit={in_4bit}), torch.device('cpu'))\n"
        "import sys\n"
        "assert 'bitsandbytes' in sys.modules\n"
        f"assert not __import__('os').path.exists({str(tmp_path / 'ran')!r})\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}"}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)
