"""Whole runs with the keys that save memory: through main(), with exact resume, and the saved agent."""

import shlex
import shutil

import pytest
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.parts.agents import save
from tests.parts.ppo_runs import rows, same, weights, without_clocks

pytestmark = pytest.mark.slow
LORA = ["--use_lora", "--lora_r", "3", "--use_share_model", "true"]
KINDS = {
    "lora, critic, fewer targets": [
        *LORA[:-1],
        *shlex.split("false --lora_target_modules [c_attn] --activation_checkpointing"),
    ],
    "lora, 4 bits, fewer targets": [*LORA, *shlex.split("--load_in_4bit --lora_target_modules [c_attn]")],
    "lora, fp16": [*LORA, "--use_amp", "--amp_dtype", "fp16"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_and_its_resume_bit_for_bit(run, world, tmp_path, kind):
    if "4 bits" in kind:
        pytest.importorskip("bitsandbytes")
    words = [*KINDS[kind], "--save_interval", "1"]
    assert run(*words, "--experiment_name", "whole", "--keep_checkpoints", "3") == 0
    whole, part = tmp_path / "run_results/whole", tmp_path / "run_results/part"
    shutil.copytree(whole, part)
    (part / "checkpoints/latest").write_text("iter_000001", encoding="utf-8")
    shutil.rmtree(part / "agent")
    assert run(*words, "--experiment_name", "part", "--resume") == 0
    assert without_clocks(part) == without_clocks(whole)
    assert same(weights(part / "agent"), weights(whole / "agent"))
    assert not same(weights(whole / "agent"), weights(world / "model"))
    state = load_file(whole / "checkpoints/iter_000002/policy.safetensors")
    if "lora" in kind:
        assert all(".lora_" in name or name.startswith("value_head") for name in state)
        assert set(weights(whole / "agent")) == set(weights(world / "model"))
    agent = AutoModelForCausalLM.from_pretrained(whole / "agent")
    assert not any(".lora_" in name for name, _ in agent.named_parameters())
    assert abs(rows(whole)[0]["objective/kl_initial"]) < 1e-3


def test_an_adapter_is_refused_on_another_model(run, tmp_path, capsys):
    assert run(*LORA) == 0
    save(tmp_path / "other", seed=5)
    again = [*LORA, "--resume_weights_only", "run_results/ppo"]
    assert run(*again, "--experiment_name", "a", "--model_path", "./other") == 2
    assert "its adapter does not fit the model of this run:\n  model_path:" in capsys.readouterr().err
    assert run(*again, "--experiment_name", "b", "--lora_alpha", "5") == 2
    assert "lora_alpha: 5.0 here, 32.0 in the checkpoint" in capsys.readouterr().err
    assert run(*again, "--experiment_name", "c", "--max_iterations", "1") == 0
    assert rows(tmp_path / "run_results/c")[0]["objective/kl"] != pytest.approx(0, abs=1e-6)
    assert run(*LORA[:2], "--lora_r", "5", "--resume") == 2
    assert "lora_r: 5 here, 3 in the checkpoint" in capsys.readouterr().err
