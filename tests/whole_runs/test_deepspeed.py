"""DeepSpeed in whole runs: what is saved and refused, what is shared out; test_rank_kills.py has its resumes."""

import json
import os
from pathlib import Path

import pytest
import torch
import yaml

from rlhf_dialog import RewardFactory, main
from rlhf_dialog.commands import export
from tests.parts.judges import Judge
from tests.parts.rank_runs import RUN, codes, lines, numbers, weights
from tests.parts.ranks import runs_in_ranks
from tests.parts.zero_files import ZERO3, write_json

pytest.importorskip("deepspeed")
pytestmark = pytest.mark.multiprocess


def deepspeed_keys(tmp_path: Path, stage: int, **blocks) -> list[str]:
    zero = ZERO3 if stage == 3 else {"stage": stage}
    return ["--use_deepspeed", "true", "--deepspeed_config", write_json(tmp_path, zero, **blocks)]


def test_bf16_resumes_and_one_process_without_deepspeed_exports_its_fp32_weights(ppo, tmp_path):
    keys = [*deepspeed_keys(tmp_path, 3, bf16={"enabled": True}), "--use_share_model", "true"]
    for more in (["--max_iterations", "2"], ["--resume"]):
        ended = ppo(2, *keys, *more)
        assert codes(ended) == [0, 0], ended[0][2]
    saved = weights(RUN / "agent")
    assert {x.dtype for x in saved.values()} == {torch.float32}
    assert any(not torch.equal(x, x.bfloat16().float()) for x in saved.values())  # masters, not what computes
    assert export.main(["--run", str(RUN), "--output", "out"]) == 0
    wanted = {path.name: path.read_bytes() for path in (RUN / "agent").iterdir()}
    assert {path.name: path.read_bytes() for path in Path("out").iterdir()} == wanted


def test_another_world_size_is_refused_and_weights_can_be_taken_by_another_stage(ppo, tmp_path):
    two = deepspeed_keys(tmp_path, 2)
    assert codes(ppo(2, *two, "--max_iterations", "2")) == [0, 0]
    first = ppo(1, *two, "--resume")[0]
    assert first[0] == 2
    assert "--resume_weights_only run_results/ppo" in first[2]
    assert "was saved with ZeRO stage 2 in fp32 on 2 processes" in first[2]
    more = ["--resume_weights_only", str(RUN), "--experiment_name", "new", "--max_iterations", "1"]
    ended = ppo(2, *deepspeed_keys(tmp_path, 3), *more)
    assert codes(ended) == [0, 0], ended[0][2]
    begun = weights(Path("run_results/new/checkpoints/iter_000000"))
    for name, x in weights(RUN / "checkpoints/iter_000002").items():
        if name.startswith(("policy.safetensors", "critic.safetensors")):
            assert torch.equal(begun[name], x), name


def test_steps_that_are_not_finite_are_told_and_the_run_stops(ppo, tmp_path):
    first = ppo(2, *deepspeed_keys(tmp_path, 3), "--lr", "1e30")[0]
    assert first[0] == 3, first[2]


def test_the_reference_of_a_partitioned_policy_is_partitioned(ppo, tmp_path):
    """The same numbers as with a whole reference on each rank."""
    Path("whole.json").write_text('{"zero_optimization": {"stage": 0}}')
    found = []
    for name, more in (("whole", ["--ref_ds_config", "whole.json"]), ("follows", [])):
        ended = ppo(2, *deepspeed_keys(tmp_path, 3), *more, "--max_iterations", "2", "--experiment_name", name)
        assert codes(ended) == [0, 0], ended[0][2]
        assert ended[0][2].count("the reference is partitioned over 2 processes") == (name != "whole")
        found.append(numbers(lines(Path("run_results") / name)))
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-4, abs=1e-6)


def test_a_frozen_model_of_a_users_reward_is_shared_out(ppo, world, monkeypatch):
    """Inside a composite, and by the keys of the run."""
    monkeypatch.setattr(RewardFactory, "classes", RewardFactory.classes | {"Judge": Judge})
    settings = yaml.safe_load(Path("ppo.yaml").read_text())
    judge = {"id": "Judge", "args": {"folder": str(world / "model")}}
    settings["reward_class"] = {"id": "CompositeReward", "args": {"parts": [judge]}}
    Path("frozen.json").write_text(json.dumps({"zero_optimization": ZERO3}))
    found = []
    for name, more in (("plain", []), ("shared", ["--intent_ds_config", "frozen.json"])):
        Path("ppo.yaml").write_text(yaml.safe_dump(settings | {"experiment_name": name, "max_iterations": 2}))
        ended = ppo(2, *more, "--eval_interval", "1", "--eval_episodes", "3")
        assert codes(ended) == [0, 0], ended[0][2]
        assert ended[0][2].count("the judge is partitioned over 2 processes (ZeRO stage 3)") == len(more) / 2
        found.append(numbers(lines(Path("run_results") / name)))
    assert found[0] == found[1]
    assert "eval/judge" in found[0][1]


SIZES = {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 16, "steps_per_print": 10}
DOCUMENT = {
    "ds_config.json": {
        "zero_optimization": {"stage": 2, "reduce_bucket_size": 5e7, "allgather_bucket_size": 5e7},
        "fp16": {"enabled": False, "loss_scale_window": 100},
    },
    "eval_ds_config.json": {
        "zero_optimization": {"stage": 0, "offload_param": {"device": "cpu"}},
        "fp16": {"enabled": False},
    },
}


def test_the_engine_configuration_of_openrl(ppo, world, tmp_path):
    """The users' YAML and JSON, with a small model in place of those of the Hub."""
    for name, blocks in DOCUMENT.items():
        (tmp_path / name).write_text(json.dumps({**SIZES, **blocks}))
    reward = {"use_deepspeed": True, "ref_model": str(world / "model"), "intent_coef": 0, "meteor_wordnet": "off"}
    reward |= {"ref_ds_config": "eval_ds_config.json", "intent_ds_config": "eval_ds_config.json"}
    engine = {"use_deepspeed": True, "use_fp16": False, "use_offload": False, "deepspeed_config": "ds_config.json"}
    data = {"model_path": str(world / "model"), "env": {"args": {"data_path": str(world / "data")}}}
    keys = {**engine, **data, "reward_class": {"id": "NLPReward", "args": reward}, "max_new_tokens": 20}
    (tmp_path / "nlp_ppo_ds.yaml").write_text(yaml.safe_dump(keys))

    def alone(rank: int) -> int:
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            del os.environ[name]  # no launcher has started it
        return main(["--config", "nlp_ppo_ds.yaml", "--max_iterations", "1"])

    ((code, _, said),) = runs_in_ranks(1, alone, tmp_path)
    assert code == 0, said
    assert [line["episodes"] for line in lines(Path("run_results/nlp_ppo_ds"))] == [32]
    assert "train_batch_size 32 -> " in said
    assert said.count("agent saved") == 1
