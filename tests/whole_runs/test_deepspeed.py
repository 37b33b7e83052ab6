"""DeepSpeed's engine: ranks make the step of one plain process, weights are shared out, runs resume with equal losses."""

import json
import sys
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

from rlhf_dialog import BaseReward, RewardFactory
from rlhf_dialog.commands import export
from tests.parts.processes import ROOT, environment, run_command
from tests.parts.rank_runs import RUN, lines, numbers, weights
from tests.parts.zero_files import ZERO3, write_json

pytest.importorskip("deepspeed")
pytestmark = pytest.mark.multiprocess


# -- whole runs


def zero_of(stage: int) -> dict:
    return ZERO3 if stage == 3 else {"stage": stage}


def deepspeed_keys(tmp_path: Path, stage: int, **blocks) -> list[str]:
    return ["--use_deepspeed", "true", "--deepspeed_config", write_json(tmp_path, zero_of(stage), **blocks)]


def codes(ended) -> list:
    return [code for code, *_ in ended]


DIFFERENT_LENGTHS = ["--max_new_tokens", "40", "--max_prompt_length", "60", "--per_device_rollout_size", "2"]


@pytest.mark.parametrize(
    ("stage", "more"),
    [
        (2, ["--use_share_model", "true"]),
        (3, [*["--use_offload", "true", "--eval_interval", "1", "--eval_episodes", "3"], *DIFFERENT_LENGTHS]),
    ],
)
def test_a_resumed_run_has_equal_losses(ppo, tmp_path, stage, more):
    size = 2
    keys = [*deepspeed_keys(tmp_path, stage), *more]
    whole_run = ppo(size, *keys, "--experiment_name", "whole")
    assert codes(whole_run) == [0] * size, whole_run[0][2]
    assert codes(ppo(size, *keys, "--max_iterations", "2")) == [0] * size
    ended = ppo(size, *keys, "--resume")
    assert codes(ended) == [0] * size, ended[0][2]
    assert "random numbers are seeded again" not in ended[0][2]
    found, expected = numbers(lines()), numbers(lines(Path("run_results/whole")))
    assert [set(line) for line in found] == [set(line) for line in expected]
    for line, wanted in zip(found, expected, strict=True):
        assert line == pytest.approx(wanted, rel=1e-6, abs=1e-9)
    left, right = (weights(RUN.with_name(name) / "agent") for name in ("whole", "ppo"))
    assert all(torch.equal(x, right[name]) for name, x in left.items())
    lm = AutoModelForCausalLM.from_pretrained(RUN / "agent")
    assert all(p.numel() for p in lm.parameters())
    assert not list(RUN.rglob("*.tmp"))
    assert not list(RUN.rglob("*.pt")) + list(RUN.rglob("*.bin"))


@pytest.mark.parametrize("stage", [2, 3])
def test_bf16_resumes_and_one_process_without_deepspeed_exports_its_fp32_weights(ppo, tmp_path, stage):
    keys = [*deepspeed_keys(tmp_path, stage, bf16={"enabled": True}), "--use_share_model", "true"]
    for more in (["--max_iterations", "2"], ["--resume"]):
        ended = ppo(2, *keys, *more)
        assert codes(ended) == [0, 0], ended[0][2]
    saved = weights(RUN / "agent")
    assert {x.dtype for x in saved.values()} == {torch.float32}
    assert any(not torch.equal(x, x.bfloat16().float()) for x in saved.values())  # masters, not what computes
    assert export.main(["--run", str(RUN), "--output", "out"]) == 0
    wanted = {path.name: path.read_bytes() for path in (RUN / "agent").iterdir()}
    assert {path.name: path.read_bytes() for path in Path("out").iterdir()} == wanted


def test_another_world_size_or_stage_is_refused_and_weights_can_be_taken(ppo, tmp_path):
    two = deepspeed_keys(tmp_path, 2)
    assert codes(ppo(2, *two, "--max_iterations", "2")) == [0, 0]
    for size, keys in ((1, two), (2, deepspeed_keys(tmp_path, 3))):
        first = ppo(size, *keys, "--resume")[0]
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
    (RUN / "checkpoints/iter_000002/policy_rank1.safetensors").unlink()
    first = ppo(2, *two, "--resume")[0]
    assert first[0] == 2
    assert "is damaged" in first[2]


def test_a_killed_rank_ends_the_others(ppo, tmp_path):
    keys = deepspeed_keys(tmp_path, 3)
    bad = json.dumps({"rank": 1, "at": 3, "end": "kill"})
    first, second = ppo(2, *keys, "--save_interval", "1", "--reward_class.args", bad)
    assert second[0] == "gone"
    assert (first[0], first[2].count("rank 0 has lost another process")) == (3, 1)
    assert codes(ppo(2, *keys, "--resume", "--reward_class.args", bad)) == [0, 0]


def test_steps_that_are_not_finite_are_told_and_the_run_stops(ppo, tmp_path):
    first = ppo(2, *deepspeed_keys(tmp_path, 3), "--lr", "1e30")[0]
    assert first[0] == 3, first[2]


def test_the_reference_of_a_partitioned_policy_is_partitioned(ppo, tmp_path):
    """Three ranks; the same numbers as with a whole reference on each of them."""
    Path("whole.json").write_text('{"zero_optimization": {"stage": 0}}')
    found = []
    for name, more in (("whole", ["--ref_ds_config", "whole.json"]), ("follows", [])):
        ended = ppo(3, *deepspeed_keys(tmp_path, 3), *more, "--max_iterations", "2", "--experiment_name", name)
        assert codes(ended) == [0] * 3, ended[0][2]
        assert ended[0][2].count("the reference is partitioned over 3 processes") == (name != "whole")
        found.append(numbers(lines(Path("run_results") / name)))
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-4, abs=1e-6)


class Judge(BaseReward):
    """A reward of a user's with a frozen model of its own; inside a composite, and by the keys of the run."""

    name = "judge"

    def __init__(self):
        self.model = torch.nn.Linear(1, 3).requires_grad_(False)
        self.model.weight.data = torch.tensor([[0.1], [0.2], [0.4]])
        self.model.bias.data = torch.zeros(3)

    def __call__(self, dialogues):
        lengths = torch.tensor([[float(len(dialogue.response))] for dialogue in dialogues])
        return self.model(lengths).sum(dim=1).tolist()

    def frozen_models(self):
        return {"judge": self.model}


def test_a_frozen_model_of_a_users_reward_is_shared_out(ppo, monkeypatch):
    monkeypatch.setattr(RewardFactory, "classes", RewardFactory.classes | {"Judge": Judge})
    settings = yaml.safe_load(Path("ppo.yaml").read_text())
    settings["reward_class"] = {"id": "CompositeReward", "args": {"parts": [{"id": "Judge"}]}}
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


# -- the files of OpenRL


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
    (tmp_path / "nlp_ppo_ds.yaml").write_text(
        yaml.safe_dump(
            {
                "use_deepspeed": True,
                "use_fp16": False,
                "use_offload": False,
                "deepspeed_config": "ds_config.json",
                "reward_class": {
                    "id": "NLPReward",
                    "args": {
                        "use_deepspeed": True,
                        "ref_ds_config": "eval_ds_config.json",
                        "ref_model": str(world / "model"),
                        "intent_ds_config": "eval_ds_config.json",
                        "intent_coef": 0,
                        "meteor_wordnet": "off",
                    },
                },
                "model_path": str(world / "model"),
                "env": {"args": {"data_path": str(world / "data")}},
                "max_new_tokens": 20,
            }
        )
    )
    words = [ROOT / "train_ppo.py", "--config", "nlp_ppo_ds.yaml", "--max_iterations", "2"]
    ran = run_command(sys.executable, *words, env=environment(DS_ACCELERATOR="cpu"))
    run = Path("run_results/nlp_ppo_ds")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert [line["episodes"] for line in lines(run)] == [32, 64]
    assert "train_batch_size 32 -> " in ran.stderr
    assert ran.stderr.count("agent saved") == 1
