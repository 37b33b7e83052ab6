"""A process of several dies at a change of the disk; the run goes on to the very numbers of a run that was left alone."""

import math
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.parts.rank_runs import lines, numbers, weights
from tests.parts.zero_files import ZERO3, write_json

pytestmark = pytest.mark.multiprocess
EVALUATED = ["--eval_interval", "2", "--eval_episodes", "3"]
DIFFERENT_LENGTHS = ["--max_new_tokens", "40", "--per_device_rollout_size", "2"]  # of the ranks' responses
KEYS = {
    "ddp": EVALUATED,
    "fsdp": ["--use_fsdp", "true", "--use_lora", "true", *EVALUATED, *DIFFERENT_LENGTHS],
    "zero2": ["--use_share_model", "true"],
    "zero3": ["--use_offload", "true", *EVALUATED, *DIFFERENT_LENGTHS],
}
ZERO = {"zero2": {"stage": 2}, "zero3": ZERO3}


@pytest.mark.parametrize("how", KEYS)
def test_a_run_that_is_killed_at_a_change_of_the_disk_goes_on_to_the_same_numbers(ppo, tmp_path, how):
    keys = [*KEYS[how], "--max_iterations", "3", "--save_interval", "1"]
    if how in ZERO:
        pytest.importorskip("deepspeed")
        keys += ["--use_deepspeed", "true", "--deepspeed_config", write_json(tmp_path, ZERO[how])]
    ended = ppo(2, *keys, "--experiment_name", "whole", kill=(0, math.inf))
    assert [code for code, *_ in ended] == [0, 0], ended[0][2]
    changes, whole = int(Path("changes").read_text()), Path("run_results/whole")
    rank, count = (1, 2) if how == "zero2" else (0, changes // 2)  # of ZeRO's ranks each writes
    ended = ppo(2, *keys, "--experiment_name", "killed", kill=(rank, count))
    assert ended[rank][0] == "gone", f"{count} of {changes}"
    ended = ppo(2, *keys, "--experiment_name", "killed", "--resume", "auto")
    assert [code for code, *_ in ended] == [0, 0], ended[0][2]
    assert "random numbers are seeded again" not in ended[0][2]
    run = Path("run_results/killed")
    assert numbers(lines(run)) == numbers(lines(whole)), f"{count} of {changes}"
    left, right = weights(whole / "agent"), weights(run / "agent")
    assert left.keys() == right.keys()
    assert all(torch.equal(x, right[key]) for key, x in left.items())
    assert all(p.numel() for p in AutoModelForCausalLM.from_pretrained(run / "agent").parameters())
    assert not [path for path in run.rglob("*") if path.suffix in (".tmp", ".pt", ".bin")]
