"""The forecast of a run's memory: published counts, the formula by hand, what is free, and what is said of it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, LlamaConfig

from rlhf_dialog.config.schema import ClassConfig
from rlhf_dialog.distributed import memory
from rlhf_dialog.distributed.memory import (
    Sizes,
    host_memory,
    human,
    model_sizes,
    needed_bytes,
    read_sizes,
    remedies,
    warn_of_memory,
)
from tests.parts.judges import BERT
from tests.parts.tiny import gpt2
from tests.parts.yaml_files import settings

GIB, MIB = 2**30, 2**20
CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
LLAMA_8B = {"vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
BILLION = Sizes(
    10**9, 9 * 10**8, 160_000, layers=10, hidden=1000, cache=4000, vocab=10_000, linear=8 * 10**8, is_half=True
)
FEW = {  # 8 responses in two microbatches
    **{"rollout_batch_size": 8, "num_mini_batch": 1, "per_device_microbatch_size": 4, "use_share_model": True},
    **{"max_prompt_length": 90, "max_new_tokens": 10},
}


def test_published_counts():
    """124M parameters (openai-community/gpt2; tied), 8,030,261,248 (meta-llama/Meta-Llama-3-8B; not tied), 8 of 32 heads."""
    gpt = model_sizes(GPT2Config())
    llama = model_sizes(LlamaConfig(**LLAMA_8B, num_key_value_heads=8, dtype="bfloat16"))
    assert (gpt.parameters, gpt.trunk, gpt.cache, gpt.is_half) == (124_439_808, 124_439_808, 2 * 12 * 768, False)
    assert (llama.parameters, llama.trunk) == (8_030_261_248, 8_030_261_248 - 128256 * 4096)
    assert (llama.cache, llama.is_half) == (2 * 32 * 8 * 128, True)
    assert gpt.linear == 12 * 12 * 768**2  # a layer's matrices: 3 + 1 + 4 + 4 times its width squared
    assert gpt.widths == 12 * 16 * 768  # 16 numbers for each hidden one
    assert 16 * gpt.widths == 2_359_296  # what peft prints for r=16 and all linear layers


WEIGHTS = 4 * 10**9 + 4 * 10**9  # policy and reference
LOGITS = 12 * 4 * 10 * 10_000  # of a microbatch
KEPT = 4 * 100 * (4 * 160_000 + 8 * 10 * 1000)  # of a microbatch's 4 x 100 tokens: linear layers, and norms in fp32
ADAPTER = 16 * 160_000
MERGED = 12 * ADAPTER + 4 * 8 * 10**8  # of LoRA: adapters and moments, and its linear layers merged, to be saved


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, WEIGHTS + 12 * 10**9 + KEPT + LOGITS),
        ({"per_device_microbatch_size": 8}, WEIGHTS + 12 * 10**9 + 2 * KEPT + 2 * LOGITS),
        ({"reference": False, "kl_coef": 0}, WEIGHTS - 4 * 10**9 + 12 * 10**9 + KEPT + LOGITS),
        ({"use_share_model": False}, WEIGHTS + 12 * 10**9 + 16 * 9 * 10**8 + 2 * KEPT + LOGITS),
        ({"use_lora": True}, 4 * 10**9 + MERGED),
        (
            {"use_lora": True, "load_in_4bit": True},  # the embeddings and norms in fp32; QLoRA's paper: 4.127 bits
            4 * 2 * 10**8 + 412_700_000 + MERGED,
        ),
        ({"use_lora": True, "ref_model": "other"}, WEIGHTS + MERGED),
        (
            {"activation_checkpointing": True},
            WEIGHTS + 12 * 10**9 + 400 * (4 * 10 * 1000 + (4 * 160_000 + 80_000) // 10) + LOGITS,
        ),
        (
            {"num_responses_per_prompt": 4, "advantage_estimator": "rloo"},
            WEIGHTS + 12 * 10**9 + KEPT * 130 // 400 + LOGITS,
        ),
    ],
)
def test_a_cpu_by_hand(keys, expected):
    assert needed_bytes(settings(**(FEW | keys)), BILLION) == expected


def test_16_bits_by_hand():
    """Frozen linear layers keep the 2 bytes of their checkpoint; embeddings and what is trained have 4, and a copy of 2."""
    norms, copies = 8 * 10 * 1000, 2 * 10**9
    kept = 400 * (2 * 160_000 + norms) + LOGITS
    trained = 16 * 10**9 + copies + kept
    frozen = 2 * 9 * 10**8 + 4 * 10**8  # linear layers and the output embedding; embeddings of the input
    assert needed_bytes(settings(**FEW), BILLION, on_cuda=True) == trained + frozen
    assert needed_bytes(settings(**FEW, precision="bf16"), BILLION) == trained + frozen
    assert needed_bytes(settings(**FEW, precision="bf16"), replace(BILLION, is_half=False)) == trained + 4 * 10**9
    adapters = frozen + 16 * ADAPTER + kept
    assert needed_bytes(settings(**FEW, use_lora=True), BILLION, on_cuda=True) == adapters
    assert needed_bytes(settings(**FEW, use_lora=True, precision="bf16"), BILLION) == frozen + MERGED
    tied = replace(BILLION, trunk=10**9)  # its output embedding is that of the input, of which a pass has a copy
    with_copy = 2 * 8 * 10**8 + 4 * 2 * 10**8 + 2 * 10_000 * 1000
    assert needed_bytes(settings(**FEW, use_lora=True, precision="bf16"), tied) == with_copy + MERGED
    few = replace(BILLION, trunk=5 * 10**8, linear=4 * 10**8)
    assert needed_bytes(settings(**FEW, use_lora=True, precision="bf16"), few) == 4 * 10**9  # read in fp32


def test_sampling_is_the_peak_of_many_rows():
    """Keys and values of 100 tokens, and four copies of the logits; eight where a filter sorts them. 128 rows at a time."""
    many = FEW | {"rollout_batch_size": 10**4, "num_mini_batch": 2500, "use_lora": True}
    many["per_device_rollout_size"] = 1000
    cache, logits = 1000 * 100 * 4000 * 4, 1000 * 10_000 * 4
    weights, sizes = 4 * 10**9 + 12 * ADAPTER, replace(BILLION, linear=10**8)
    assert needed_bytes(settings(**many), sizes) == weights + cache + 4 * logits
    assert needed_bytes(settings(**many, top_k=5), sizes) == weights + cache + 8 * logits
    assert needed_bytes(settings(**many), sizes, world_size=20) == weights + (cache + 4 * logits) // 2


@pytest.fixture
def folder(tmp_path):
    """A folder with a config.json alone."""
    gpt2().config.save_pretrained(tmp_path / "lm")
    return tmp_path


def test_models_of_the_reward_are_counted(folder, monkeypatch):
    monkeypatch.setattr(memory, "host_memory", lambda: (10**12, 10**12))
    BertConfig(**BERT, num_labels=4).save_pretrained(folder / "bert")
    judge = {"id": "Intent", "args": {"intent_model": str(folder / "bert")}}
    needed = [
        warn_of_memory(settings(model_path=str(folder / "lm"), reward_class=reward), CPU)
        for reward in ({"id": "Meteor"}, {"id": "CompositeReward", "args": {"parts": [judge, {"id": "Meteor"}]}})
    ]
    assert needed[1] - needed[0] == 4 * BertForSequenceClassification(BertConfig(**BERT, num_labels=4)).num_parameters()


@pytest.mark.parametrize("content", ["{", "code"])
def test_a_config_that_cannot_be_read_has_no_forecast_and_its_code_does_not_run(tmp_path, content):
    (tmp_path / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')", encoding="utf-8")
    own = {"model_type": "martian", "auto_map": {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"}}
    (tmp_path / "config.json").write_text(json.dumps(own) if content == "code" else content, encoding="utf-8")
    assert warn_of_memory(settings(model_path=str(tmp_path)), CPU) is None
    assert not (tmp_path / "ran").exists()


def test_a_run_that_does_not_fit_is_warned_once(folder, monkeypatch, caplog):
    config = settings(model_path=str(folder / "lm"))
    needed = needed_bytes(config, read_sizes(config.model_path))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (MIB, 80 * GIB))
    for device, free, processes, words in (
        (CPU, None, 1, ()),
        (CPU, needed, 1, ()),
        (CPU, MIB, 1, (human(needed), "1.0 MiB are free on this machine")),
        (CPU, 2 * needed, 3, (human(3 * needed), f"{human(2 * needed)} are free")),
        (CUDA, 10**12, 3, ("1.0 MiB are free on cuda:0",)),
    ):
        caplog.clear()
        monkeypatch.setattr(memory, "host_memory", lambda free=free: (free, None))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
        wanted = needed_bytes(config, read_sizes(config.model_path), on_cuda=device == CUDA)
        assert warn_of_memory(config, device) == wanted
        assert len(caplog.messages) == bool(words)
        assert all(word in caplog.text for word in words)


@pytest.mark.parametrize("keys", [{"use_fsdp": True}, {"use_deepspeed": True, "deepspeed_config": "zero1.json"}])
def test_sharded_weights_have_no_forecast(folder, keys):
    assert warn_of_memory(settings(model_path=str(folder / "lm"), **keys), CPU) is None


def test_only_what_can_help_is_named():
    everything = {"use_share_model": True, "per_device_microbatch_size": 1, "activation_checkpointing": True}
    least = settings(**everything, use_lora=True, load_in_4bit=True, max_prompt_length=64)
    assert remedies(least) == ["max_prompt_length: 32", "a smaller model"]
    assert remedies(settings(**everything, use_lora=True))[0] == "load_in_4bit: true"
    assert "load_in_4bit: true" not in remedies(settings(use_lora=True, use_fsdp=True))
    assert [x.partition(":")[0] for x in remedies(settings())][:4] == [*everything, "use_lora"]
    assert "use_share_model: true" not in remedies(settings(advantage_estimator="rloo"))
    assert "use_lora: true" not in remedies(settings(use_deepspeed=True, deepspeed_config="zero1.json"))
    network = settings().model_copy(update={"model_class": ClassConfig(id="Mine")})
    assert remedies(network)[0] == "per_device_microbatch_size: 1"
    assert not {"use_lora: true", "activation_checkpointing: true"} & set(remedies(network))


def write(folder: Path, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text, encoding="utf-8")


def test_free_memory_is_that_of_the_machine_or_of_its_control_groups(tmp_path):
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    assert host_memory(proc, groups) == (None, None)
    write(proc, meminfo="MemTotal: 900 kB\nMemFree: 1 kB\nMemAvailable:     500 kB\n")
    machine = 500 * 1024, 900 * 1024
    assert host_memory(proc, groups) == machine
    write(proc / "self", cgroup="0::/a/b\n")
    write(groups / "a" / "b", memory__max="max\n", memory__current="10\n")
    assert host_memory(proc, groups) == machine
    above = {"memory__max": "300000\n", "memory__current": "100000\n", "memory__stat": "anon 5\ninactive_file 50000\n"}
    write(groups / "a", **above)
    assert host_memory(proc, groups) == (250_000, 300_000)  # a limit above, and pages of files
    write(groups / "a" / "b", memory__max="1000\n", memory__current="5000\n")
    assert host_memory(proc, groups) == (0, 1000)
