"""FSDP2 in whole runs: what a resumed run has, also on another number of processes, and how ranks that fail end it."""

import json
import shlex
from pathlib import Path

import pytest
import torch

from tests.parts.rank_runs import RUN, lines, numbers, weights

pytestmark = pytest.mark.multiprocess
FSDP = ["--use_fsdp", "true"]


def codes(ended) -> list:
    return [code for code, *_ in ended]


def test_a_resumed_run_has_equal_losses(ppo):
    size = 3
    more = shlex.split("--eval_interval 1 --eval_episodes 2 --max_new_tokens 40 --per_device_rollout_size 2")
    whole_run = ppo(size, *FSDP, *more, "--experiment_name", "whole")
    assert codes(whole_run) == [0] * size, whole_run[0][2]
    assert codes(ppo(size, *FSDP, *more, "--max_iterations", "2")) == [0] * size
    ended = ppo(size, *FSDP, *more, "--resume")
    assert codes(ended) == [0] * size, ended[0][2]
    assert numbers(lines()) == numbers(lines(Path("run_results/whole")))
    left, right = (weights(RUN.with_name(name) / "checkpoints/iter_000004") for name in ("whole", "ppo"))
    assert left.keys() == right.keys()
    assert all(torch.equal(x, right[name]) for name, x in left.items())
    assert not list(RUN.rglob("*.tmp"))


def test_three_ranks_save_and_two_or_one_go_on_in_any_way(ppo):
    assert codes(ppo(3, *FSDP, "--max_iterations", "2")) == [0, 0, 0]
    saved = weights(RUN / "checkpoints/iter_000002")
    assert {"policy_optimizer.safetensors.3.exp_avg", "critic_optimizer.safetensors.0.step"} <= set(saved)
    assert codes(ppo(3, "--max_iterations", "2", "--experiment_name", "ddp")) == [0, 0, 0]
    other = weights(Path("run_results/ddp/checkpoints/iter_000002"))
    assert {name: x.shape for name, x in other.items()} == {name: x.shape for name, x in saved.items()}
    for size, keys in ((2, FSDP), (1, [])):
        ended = ppo(size, *keys, "--resume", "--max_iterations", "3", "--save_interval", "5")
        assert codes(ended) == [0] * size, ended[0][2]
        assert len(lines()) == 3


def test_a_rank_that_is_killed_ends_all(ppo):
    bad = json.dumps({"rank": 1, "at": 3, "end": "kill"})
    first, second = ppo(2, *FSDP, "--experiment_name", "killed", "--save_interval", "1", "--reward_class.args", bad)
    assert (first[0], second[0]) == (3, "gone")
    assert first[2].count("rank 0 has lost another process") == 1
    ended = ppo(2, *FSDP, "--experiment_name", "killed", "--resume", "--reward_class.args", bad)
    assert codes(ended) == [0, 0], ended[0][2]
