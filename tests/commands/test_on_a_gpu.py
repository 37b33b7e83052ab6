"""Every command that computes with a model, on a pretended GPU: nothing is left on the CPU, and tables are as exact as there."""

import json
import threading

import pytest
import torch

from rlhf_dialog.commands import audit, chat
from rlhf_dialog.commands.supervised import (
    train_intent_classifier,
    train_preference_model,
    train_relevance_model,
    train_sft,
)
from rlhf_dialog.feedback.learning.night import learn
from rlhf_dialog.feedback.page.batched_generation import Answering
from rlhf_dialog.task_oriented.commands import evaluate_policy
from tests.parts import pretended_gpu, taught_bots
from tests.parts.evaluations import evaluated, save_plain
from tests.parts.relevance_models import save_letters
from tests.parts.scalars import pairs_about_a_word, save_scalar, write_pairs

pytestmark = pytest.mark.slow
FEW = ["--max_steps", "2", "--batch_size", "4", "--pytorch_threads", "1"]


@pytest.fixture
def gpu(monkeypatch):
    """The device, in threads too."""
    run = threading.Thread.run

    def run_on_device(thread):
        with pretended_gpu._Mode():
            run(thread)

    monkeypatch.setattr(threading.Thread, "run", run_on_device)
    before = torch.get_float32_matmul_precision()
    with pretended_gpu.pretended_gpu() as counts:
        yield counts
    torch.set_float32_matmul_precision(before)


def in_bf16(gpu):
    return any("float32 to torch.bfloat16" in what for what in gpu.casts)


def test_sft(gpu, data, tmp_path):
    small = ["--n_layer", "1", "--n_embd", "32", "--n_head", "2", "--vocab_size", "300", "--evals", "1"]
    assert train_sft(["--data_path", data, "--output", str(tmp_path / "out"), *small, *FEW]) == 0
    assert in_bf16(gpu)


def test_an_act_classifier(gpu, data, tmp_path):
    small = ["--num_layers", "1", "--hidden_size", "32", "--vocab_size", "300", "--max_length", "48"]
    assert train_intent_classifier(["--data_path", data, "--output", str(tmp_path / "out"), *small, *FEW]) == 0
    assert in_bf16(gpu)


def test_a_preference_model(gpu, tmp_path):
    pairs = write_pairs(tmp_path / "pairs.jsonl", pairs_about_a_word(40))
    words = ["--data_path", pairs, "--model_path", save_plain(tmp_path / "start"), "--output", str(tmp_path / "out")]
    assert train_preference_model([*words, "--num_samples", "2", "--max_new_tokens", "4", *FEW]) == 0
    assert in_bf16(gpu)


@pytest.mark.parametrize("architecture", ["bag", "convolution", "cross_encoder"])
def test_a_relevance_model(gpu, data, tmp_path, architecture):
    words = ["--data_path", data, "--output", str(tmp_path / "out"), "--architecture", architecture]
    replies = ["--model_replies", "4", "--sft_model", save_plain(tmp_path / "start")]
    small = ["--hidden_size", "32", "--vocab_size", "300", "--members", "1", "--bank_size", "8"]
    assert train_relevance_model([*words, *replies, *small, *FEW]) == 0
    assert in_bf16(gpu)


def test_evaluate(gpu, script, runs, classifier, tmp_path):
    judges = ["--judge", classifier, "--intent_model", classifier]
    judges += ["--judge", json.dumps({"id": "RewardModel", "args": {"model": save_scalar(tmp_path / "scalar")}})]
    judges += ["--judge", json.dumps({"id": "LikelihoodPrice", "args": {"model": str(runs[1])}})]
    judges += ["--relevance_model", save_letters(tmp_path / "relevance")]
    words = ["--agent", runs[0], "--baseline", runs[1], "--beside", f"same={runs[0]}", *judges]
    words += ["--max_prompts", "6"]
    on_gpu = evaluated(script, tmp_path, *words)
    assert in_bf16(gpu)
    gpu.reset()
    exact = evaluated(script, tmp_path, *words, "--precision", "fp32")
    assert not in_bf16(gpu)
    on_cpu = evaluated(script, tmp_path, *words, "--device", "cpu")
    same = {"after": (exact, on_cpu)} | {
        name: (exact, on_cpu, on_gpu) for name in exact["baselines"]
    }  # drawn by nobody
    for system, (first, *others) in same.items():
        for name, found in (first["baselines"] | first)[system].items():
            for other in others:  # chunks of other sizes change the last digits of log-probabilities
                assert found["mean"] == pytest.approx((other["baselines"] | other)[system][name]["mean"], abs=1e-5), (
                    name
                )
    for system in ("after", "before"):
        assert on_gpu[system]["reference_perplexity"] == on_cpu[system]["reference_perplexity"]


def test_audit(gpu, runs, data, tmp_path):
    keys = {"model_path": "m", "env": {"args": {"data_path": data}}, "reward_class": {"id": "RelevanceReward"}}
    keys["reward_class"]["args"] = {"model": save_letters(tmp_path / "relevance")}
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(keys))
    small = ["--max_prompts", "20", "--search_prompts", "10", "--search_replies", "100"]
    small += ["--search_rounds", "4", "--search_candidates", "20", "--likelihood", str(runs[0])]
    found = []
    for device in ("auto", "cpu"):
        words = ["--config", str(path), "--output", str(tmp_path / "audit.json"), "--device", device]
        assert audit.main([*words, *small]) in (0, 1)
        found.append(json.loads((tmp_path / "audit.json").read_text()))
    assert found[0]["verdict"] == found[1]["verdict"]
    paid = [[probe["paid"]["mean"] for probe in one["probes"].values()] for one in found]
    assert paid[0] == pytest.approx(paid[1], abs=1e-5)


def test_chat(gpu, runs, monkeypatch, capsys):
    lines = iter(["Hello .", "How are you ?"])
    monkeypatch.setattr("builtins.input", lambda _: next(lines, "quit"))
    assert chat.main(["--agent", str(runs[0])]) == 0
    assert in_bf16(gpu)


@pytest.mark.parametrize("settings", [{}, {"use_lora": True, "lora_r": 2}])
def test_a_night_and_the_page(gpu, tmp_path, settings):
    bot = taught_bots.new_bot(tmp_path, device="auto", **settings)
    taught_bots.talk_to(bot, 40)
    assert learn(bot).metrics
    assert in_bf16(gpu)
    with Answering(bot) as answering:
        *_, answer = answering.stream(["Hello ."], answering.begin())
        assert answer.ended


def test_dialogues_with_an_environment(gpu, runs, tmp_path):
    words = ["--agent", str(runs[0]), "--baseline", str(runs[1]), "--environment", "restaurant", "--dialogues", "2"]
    assert evaluate_policy.main([*words, "--output", str(tmp_path / "e.json")]) == 0
    assert in_bf16(gpu)
