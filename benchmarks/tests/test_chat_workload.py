"""Workload R: its inputs, one run of it from end to end, and what the command says to wrong options."""

import json
from argparse import Namespace

import pytest
from transformers import AutoTokenizer

from benchmarks import benchmark, chat_workload, trl_chat
from benchmarks.tests.inputs import RATES
from rlhf_dialog.data.chat_template import prompt_encoder
from rlhf_dialog.data.prompts import PromptRules

FEW = ["--size=test", "--rollout_batch_size=8", "--minibatch=4", "--iterations=2", "--max_new_tokens=5", "--device=cpu"]


def test_made_up_prompts_have_the_lengths_of_those_of_people(tmp_path):
    chat_workload.write_files(Namespace(model=None, prompts=None, size="test"), tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "policy")
    encoder = prompt_encoder(tokenizer, "chat_template", 512)
    prompts = PromptRules().load(str(tmp_path / "prompts.jsonl"), "train")
    lengths = sorted(len(encoder.encode_prompt(prompt.prompt_turns)) for prompt in prompts)
    assert len(lengths) == chat_workload.NUM_PROMPTS
    quantiles = [int(word) for word in chat_workload.LENGTHS.split()]
    for share, wanted in ((0.25, quantiles[5]), (0.5, quantiles[10]), (0.75, quantiles[15])):
        assert lengths[round(share * len(lengths))] == pytest.approx(wanted, abs=2)


@pytest.mark.slow
def test_a_run_says_how_much_of_it_is_products(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(benchmark.machine, "calibrate", lambda device: RATES)  # which takes three seconds
    assert benchmark.main(["--workload=R", *FEW, f"--json={tmp_path / 'out.json'}"]) == 0
    printed = capsys.readouterr().out
    found = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert (found["workload"], found["critic"], found["epochs"]) == ("R-synthetic", "no", 1)
    assert found["products"]["seconds"] == pytest.approx(
        found["products"]["share"] * found["iterations"][-1]["seconds"]
    )
    assert "R-synthetic test llama, no critic, fp32, cpu" in printed
    assert "would be matrix products alone" in printed


@pytest.mark.slow
@pytest.mark.parametrize("method", trl_chat.METHODS)
def test_the_peer_makes_as_many_steps_on_as_many_responses(method, capsys):
    assert trl_chat.main([f"--method={method}", *FEW, "--iterations=3"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(found["seconds"]) == 2
    assert all(8 <= tokens <= 8 * 5 for tokens in found["tokens"])
    assert found["tokens_per_s"] == pytest.approx(sum(found["tokens"]) / sum(found["seconds"]))
