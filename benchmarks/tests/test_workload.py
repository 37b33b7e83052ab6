"""The workload is W's: prompts, policies, classifier and configuration."""

import numpy as np
import pytest
import torch

from benchmarks import benchmark, workload
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.prompts import PromptRules

pytestmark = pytest.mark.usefixtures("registered")


@pytest.mark.parametrize(("vocabulary", "mean", "median", "p90"), [(8192, 51.5, 46, 102), (50257, 47.0, 42.5, 91)])
def test_prompts_are_as_long_as_in_w(vocabulary, mean, median, p90):
    lengths = np.minimum(workload.prompt_lengths(vocabulary), 128)
    assert len(lengths) == 512
    assert lengths.mean() == pytest.approx(mean, abs=0.5)
    assert np.median(lengths) == pytest.approx(median, abs=1)
    assert np.percentile(lengths, 90) == pytest.approx(p90, abs=1)
    assert 0.015 < (lengths == 128).mean() < 0.05


def test_the_trainer_reads_the_ids_that_w_has(tokenizer, tmp_path):
    inputs = workload.Inputs("W-synthetic", tokenizer, tokenizer, workload.made_up_items(tokenizer))
    workload.write_files(inputs, workload.SIZES["1m"], "gpt2", tmp_path)
    encoder = workload.WholeTexts(tokenizer, "<EOU>", 128)
    prompts = PromptRules(turn_separator=None).load(str(tmp_path / "prompts.jsonl"), "train")
    ours = [encoder.encode_prompt(prompt.prompt_turns) for prompt in prompts]
    theirs = [tokenizer(i["prompt"], truncation=True, max_length=128)["input_ids"] for i in inputs.items]
    assert ours == theirs == inputs.expected_ids()
    assert max(map(len, ours)) == 128
    assert len(prompts[0].prompt_turns) == inputs.items[0]["prompt"].count("<EOU>")
    assert [prompt.reference for prompt in prompts] == [item["reference"] for item in inputs.items]


def test_the_reward_is_w_s_own_formula(small_tokenizer, tmp_path):
    small_tokenizer.save_pretrained(tmp_path)
    prompts = [workload.turns_of(item["prompt"], 0) for item in workload.made_up_items(small_tokenizer)[:40]]
    prompts.append([turn for turns in prompts[:8] for turn in turns])
    dialogues = [Dialogue(prompt_turns=turns, response="ba") for turns in prompts]
    texts = [" <EOU> ".join(turns) + " <EOU> ba" for turns in prompts]
    ids = small_tokenizer(texts, truncation=True, max_length=200)["input_ids"]
    longest = max(map(len, ids))
    padded, mask = torch.full((len(ids), longest), 1), torch.zeros((len(ids), longest), dtype=torch.long)
    for i, row in enumerate(ids):
        padded[i, : len(row)], mask[i, : len(row)] = torch.tensor(row), 1
    logits = workload.classifier("test")(input_ids=padded, attention_mask=mask).logits
    wanted = logits.float().softmax(-1)[:, 0].tolist()
    assert longest == 200
    for size in (16, 3):
        reward = workload.BenchmarkClassifier(str(tmp_path), "test", "fp32", size)
        assert reward(dialogues) == pytest.approx(wanted, abs=1e-6)
    rough = workload.BenchmarkClassifier(str(tmp_path), "test", "bf16")(dialogues)
    assert rough == pytest.approx(wanted, abs=1e-2)
    assert rough != pytest.approx(wanted, abs=1e-9)


def test_the_configuration_is_w_s(tmp_path):
    options = benchmark.parse(["--size=small", "--critic=separate", "--dtype=bf16", "--set", "clip_param=0.3"])
    config = workload.run_config(options, tmp_path)
    numbers = (config.rollout_batch_size, config.num_mini_batch, config.ppo_epoch, config.max_new_tokens)
    assert numbers == (64, 4, 5, 20)
    assert (config.lr, config.kl_coef, config.entropy_coef, config.temperature) == (1e-6, 0.05, 0, 1)
    assert (config.use_share_model, config.precision, config.clip_param) == (False, "bf16", 0.3)
    parts = config.reward_class.args["parts"]
    assert [(part["id"], part["weight"]) for part in parts] == [("BenchmarkClassifier", 0.5), ("Meteor", 0.5)]
