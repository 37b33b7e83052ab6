"""TRL's PPO on W: its numbers, its reward, and its speed. It is run whole by tests/benchmarks/test_gpu.py."""

import pytest
import torch

from benchmarks import benchmark, trl, workload
from rlhf_dialog.data.dialogue import Dialogue

pytestmark = pytest.mark.usefixtures("registered")


def test_it_takes_as_many_steps_as_ours():
    options = trl.parse(["--trl=x", "--rollout_batch_size=64", "--minibatch=16", "--iterations=3"])
    found = trl.arguments(options)
    assert (found["num_mini_batches"], found["num_ppo_epochs"], found["total_episodes"]) == (4, 5, 192)
    assert (found["response_length"], found["use_cpu"], found["bf16"]) == (20, False, False)
    ours, theirs = benchmark.parse([]), vars(options)
    same = ("rollout_batch_size", "minibatch", "max_new_tokens", "epochs")
    assert [theirs[name] for name in same] == [getattr(ours, name) for name in same]


def test_its_reward_is_our_classifier(tmp_path, small_tokenizer):
    small_tokenizer.save_pretrained(tmp_path)
    ours = workload.BenchmarkClassifier(str(tmp_path), "test")
    words = ["ba", "ce di", "fo gu ha ja"]
    expected = ours([Dialogue([word], response="ba ce") for word in words])
    texts = [f"{word} <EOU> ba ce" for word in words]
    encoded = small_tokenizer(texts, padding=True, return_tensors="pt")
    judge = trl.Judge("test", small_tokenizer, small_tokenizer)
    found = judge.backbone(encoded["input_ids"], encoded["attention_mask"], use_cache=False).hidden_states[-1]
    assert found.shape == (3, encoded["input_ids"].shape[1], 1)
    assert judge.score(found)[:, -1, 0].tolist() == pytest.approx(expected, abs=1e-5)
    assert torch.equal(found[:, 0], found[:, -1])
