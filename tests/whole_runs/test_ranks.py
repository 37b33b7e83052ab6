"""Whole runs of several ranks: what they leave, how they resume, and how they end when one of them fails."""

import json
import os
import shutil
import signal

import numpy as np
import pytest
from transformers import AutoModelForCausalLM

from rlhf_dialog import main
from rlhf_dialog.distributed import rank_errors
from rlhf_dialog.runs import agent
from tests.parts import tiny
from tests.parts.rank_runs import RUN, codes, lines, seen, weights
from tests.parts.ranks import runs_in_ranks

pytestmark = pytest.mark.multiprocess


def test_two_ranks_are_one_run(ppo):
    first, second = ppo(2, "--max_iterations", "3", "--eval_interval", "2", "--eval_episodes", "5")
    assert (first[0], second[0]) == (0, 0), first[2] + second[2]
    assert (second[1], second[2]) == ("", "")
    assert [line["iteration"] for line in lines()] == [1, 2, 3]
    assert [line["episodes"] for line in lines()] == [7, 14, 21]
    assert [first[1].count(text) for text in ("iteration 1  reward", "\n| ")] == [1, 6]  # two replies of each iteration
    assert [("eval/score" in line) for line in lines()] == [False, True, True]
    trained = [[rows for rows in seen(rank) if rows[0][0] == "train"] for rank in (0, 1)]
    for left, right in zip(*trained, strict=True):
        assert (len(left), len(right)) == (3, 4)
        assert not {row[1] for row in left} & {row[1] for row in right}
        assert not {row[2] for row in left} & {row[2] for row in right}
    assert all(rows[0][0] == "train" for rows in seen(1))  # rank 0 validates
    AutoModelForCausalLM.from_pretrained(RUN / "agent")
    files = {"config.yaml", "ledger.jsonl", "local_names.json", "metrics.jsonl", "report.html"}
    assert {path.name for path in RUN.iterdir()} == {"agent", "best_agent", "checkpoints", *files}
    ledger = [json.loads(line) for line in (RUN / "ledger.jsonl").read_text(encoding="utf-8").splitlines()]
    dialogues = [row[1] for parts in zip(*trained, strict=True) for part in parts for row in part]
    assert [row["index"] for row in ledger] == dialogues  # those of rank 0 first in each iteration


def drawn_prompts():
    """The place and the text of each prompt, in the order in which the run has drawn them."""
    ledger = [json.loads(line) for line in (RUN / "ledger.jsonl").read_text(encoding="utf-8").splitlines()]
    return [(row["index"], row["prompt"]) for row in ledger]


@pytest.mark.slow
def test_two_ranks_draw_the_permutation_of_one_and_the_prompts_of_the_file(ppo, tmp_path):
    """The order by numpy, the texts by hand: dialogues of three turns give two prompts each. 28 draws begin a second epoch."""
    dialogues = [[f"a{i} ?", f"b{i} .", f"c{i} !"] for i in range(10)]
    (tmp_path / "talks.jsonl").write_text("".join(json.dumps({"dialog": turns}) + "\n" for turns in dialogues))
    prompts = [turns[:end] for turns in dialogues for end in (1, 2)]
    order = [int(i) for epoch in (0, 1) for i in np.random.default_rng([3, epoch]).permutation(20)][:28]
    words = ["--env.args.data_path", "talks.jsonl", "--seed", "3", "--ledger_texts", "all"]
    for size in (1, 2):
        assert codes(ppo(size, *words)) == [0] * size
        assert drawn_prompts() == [(i, prompts[i]) for i in order]
        shutil.rmtree(RUN)


def test_two_ranks_train_the_adapters_of_a_base_in_4_bits(ppo):
    pytest.importorskip("bitsandbytes")
    words = ["--use_lora", "--lora_r", "2", "--load_in_4bit", "--lr", "1e-2", "--kl_rate", "0", "--kl_coef", "0"]
    outcomes = ppo(2, *words, "--max_iterations", "2")
    assert [outcome[0] for outcome in outcomes] == [0, 0], outcomes
    assert abs(lines()[0]["objective/kl_initial"]) < 1e-3
    assert lines()[-1]["ppo/grad_norm"] > 0
    state = weights(RUN / "checkpoints/iter_000002")
    learned = [(state[name] != 0).any() for name in state if "lora_B" in name]  # at the start all are 0
    assert learned
    assert all(learned)
    AutoModelForCausalLM.from_pretrained(RUN / "agent")


def test_another_number_of_processes_goes_on_with_a_notice(ppo):
    assert ppo(1, "--max_iterations", "2")[0][0] == 0
    first, other = ppo(2, "--resume")
    assert (first[0], other[0]) == (0, 0), first[2]
    assert "was saved by 1 processes, but this run has 2; random numbers are seeded again" in first[2]
    assert [line["iteration"] for line in lines()] == [1, 2, 3, 4]
    assert [line["episodes"] for line in lines()] == [7, 14, 21, 28]
    responses = [json.dumps(rows) for rank in range(2) for rows in seen(rank)]
    assert len(set(responses)) == len(responses)  # not the random numbers of the beginning


def test_a_reward_that_raises_on_one_rank_ends_all_and_names_it(ppo):
    first, second = ppo(2, "--reward_class.args", json.dumps({"rank": 1, "at": 3}))
    assert (first[0], second[0]) == (2, 2)
    message = "error: rank 1: reward 'moody' raised ZeroDivisionError: a bad day at"
    assert first[2].count(message) == 1
    assert "Traceback" not in first[2]
    assert second[1:] == ("", "")
    assert "in bad_end" in (RUN / "error.log").read_text()
    assert [line["iteration"] for line in lines()] == [1, 2]
    assert not (RUN / ".lock").exists()


def test_an_evaluation_that_fails_on_rank_0_costs_no_iteration(ppo):
    words = ["--eval_interval", "3", "--eval_episodes", "2", "--save_interval", "5"]
    fifth = "{id: Moody, args: {rank: 0, at: 5}}"  # after the check of the references and three rollouts
    (code, _, said), (other, _, _) = ppo(2, *words, "--reward_class", fifth)
    assert (code, other) == (2, 2)
    assert "the run ends after iteration 3, which is saved" in said
    assert (RUN / "checkpoints/latest").read_text() == "iter_000003"
    assert [row["iteration"] for row in lines()] == [1, 2, 3]
    again = ppo(2, "--eval_episodes", "2", "--resume", "auto", "--reward_class", fifth)
    assert [code for code, *_ in again] == [0, 0]
    assert [row["iteration"] for row in lines()] == [1, 2, 3, 4]


def test_a_killed_rank_ends_the_others_and_the_run_can_go_on(ppo):
    first, second = ppo(2, "--reward_class.args", json.dumps({"rank": 1, "at": 4, "end": "kill"}))
    assert second[0] == "gone"
    assert first[0] == 3
    assert first[2].count("rank 0 has lost another process") == 1
    assert [line["iteration"] for line in lines()] == [1, 2, 3]
    first, second = ppo(2, "--resume", "--reward_class.args", json.dumps({"rank": 1, "at": 4, "end": "kill"}))
    assert (first[0], second[0]) == (0, 0)  # one call less before its end
    assert [line["iteration"] for line in lines()] == [1, 2, 3, 4]


def test_a_signal_that_one_rank_gets_ends_all_after_the_same_iteration(ppo):
    first, second = ppo(2, "--reward_class.args", json.dumps({"rank": 1, "at": 3, "end": "term"}))
    assert (first[0], second[0]) == (143, 143)
    assert first[2].count("saved after iteration 3; continue with --resume") == 1
    assert second[2] == ""
    assert (RUN / "checkpoints/latest").read_text() == "iter_000003"
    assert [line["iteration"] for line in lines()] == [1, 2, 3]


def test_what_only_rank_0_may_see_refuses_all(ppo, monkeypatch):
    monkeypatch.setattr(rank_errors, "REPORT_TIMEOUT", 1.0)  # no launcher ends the other one
    RUN.mkdir(parents=True)
    (RUN / "metrics.jsonl").write_text('{"iteration": 1}\n')
    first, second = ppo(2)
    assert (first[0], second[0], second[2]) == (2, 2, "")
    assert first[2].count("already contains a run") == 1
    first, second = ppo(2, "--lr", "-1")
    assert first[2].count("error: ") == 1
    assert first[0] == 2


def test_ranks_with_other_data_are_refused(ppo, tmp_path, world):
    tiny.write_data(tmp_path / "other", 5)
    os.symlink(world / "data", tmp_path / "data0")
    os.symlink(tmp_path / "other", tmp_path / "data1")

    def work(rank: int) -> int:
        return main(["--config", "ppo.yaml", "--env.args.data_path", f"data{rank}"])

    first, second = runs_in_ranks(2, work, tmp_path)
    assert (first[0], second[0]) == (2, 2)
    assert "rank 1: data1/" in first[2]
    assert "rank 0 has read" in first[2]


def test_a_signal_to_rank_0_outside_of_the_iterations_ends_rank_1_with_3(ppo, monkeypatch):
    whole = agent.load_models

    def asked_to_end(*words, **options):
        if rank_errors.rank() == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return whole(*words, **options)

    monkeypatch.setattr(agent, "load_models", asked_to_end)
    first, second = ppo(2, "--max_iterations", "1")
    assert (first[0], second[0]) == (143, 3), first[2] + second[2]
    assert "lost another process" in second[2]


def test_three_ranks_save_and_two_or_one_go_on_in_any_way(ppo):
    assert codes(ppo(3, "--use_fsdp", "true", "--max_iterations", "2")) == [0, 0, 0]
    saved = weights(RUN / "checkpoints/iter_000002")
    assert {"policy_optimizer.safetensors.3.exp_avg", "critic_optimizer.safetensors.0.step"} <= set(saved)
    for size, keys, length in ((2, ["--use_fsdp", "true"], 3), (1, [], 4)):
        ended = ppo(size, *keys, "--resume", "--max_iterations", str(length), "--save_interval", "5")
        assert codes(ended) == [0] * size, ended[0][2]
        assert len(lines()) == length
    other = weights(RUN / "checkpoints/iter_000004")  # of one process
    shapes = [{name: x.shape for name, x in some.items() if "random" not in name} for some in (saved, other)]
    assert shapes[0] == shapes[1]
