"""Every command that computes with a model, on a pretended GPU: nothing is left on the CPU, and tables are as exact as there."""

import json
import threading

import pytest
import torch

from rlhf_dialog.commands import chat
from rlhf_dialog.commands.supervised import (
    train_intent_classifier,
    train_preference_model,
    train_relevance_model,
    train_sft,
)
from rlhf_dialog.feedback.learning.night import learn
from rlhf_dialog.feedback.page.batched_generation import Answering
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


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (train_sft, "--n_layer 1 --n_embd 32 --n_head 2 --vocab_size 300 --evals 1"),
        (train_intent_classifier, "--num_layers 1 --hidden_size 32 --vocab_size 300 --max_length 48"),
        (train_preference_model, "--model_path {lm} --num_samples 2 --max_new_tokens 4"),
        (train_relevance_model, "--hidden_size 32 --vocab_size 300 --members 1 --bank_size 8"),
    ],
)
def test_a_supervised_stage(gpu, data, tmp_path, command, words):
    if command is train_preference_model:
        data = write_pairs(tmp_path / "pairs.jsonl", pairs_about_a_word(40))
    small = words.format(lm=save_plain(tmp_path / "lm")).split()
    assert command(["--data_path", data, "--output", str(tmp_path / "out"), *small, *FEW]) == 0
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
