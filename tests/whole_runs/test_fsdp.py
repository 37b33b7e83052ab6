"""FSDP2 in whole runs: what a resumed run has, also on another number of processes, and how ranks that fail end it."""

from pathlib import Path

import pytest

from tests.parts.rank_runs import RUN, lines, weights

pytestmark = pytest.mark.multiprocess
FSDP = ["--use_fsdp", "true"]


def codes(ended) -> list:
    return [code for code, *_ in ended]


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
