"""JudgeReward in whole runs: what a killed run has asked is not asked again, and the judge's words are in the ledger."""

import json
import shutil

import pytest

from tests.parts.ppo_runs import same, weights, without_clocks
from tests.parts.servers import serving
from tests.rewards.test_judge import question_of, said

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_proxy")]


def judges(number, body, handler):
    """By the length of the question, with no score for one of four; the second reply is the better one."""
    text = question_of(body)
    if "Ranking:" in text:
        return said("Ranking: 2, 1")
    return said("I cannot tell." if len(text) % 4 == 0 else f"Well. Score: {1 + len(text) % 5}")


@pytest.mark.parametrize("mode", ["score", "rank"])
def test_an_exact_resume_asks_nothing_twice(run, tmp_path, mode):
    folder = tmp_path / "run_results" / "ppo"
    with serving(judges) as server:
        args = {"url": server.url.replace("/score", "/v1"), "model": "m", "rubric": "r", "mode": mode}
        words = ["--reward_class", json.dumps({"id": "JudgeReward", "args": args}), "--on_reward_error", "skip"]
        words += ["--num_responses_per_prompt", "2", "--advantage_estimator", "rloo", "--max_iterations", "4"]
        words += ["--save_interval", "2", "--eval_interval", "2", "--eval_episodes", "4"]
        if mode == "rank":
            judge = {"id": "JudgeReward", "args": args | {"mode": "score", "model": "another"}}
            words += ["--guard", json.dumps({"judge": judge})]
        assert run(*words) == 0
        asked, rows, agent = len(server.requests), without_clocks(folder), weights(folder / "agent")
        assert asked > 16
        # as if it had been killed before its last checkpoint
        shutil.rmtree(folder / "checkpoints" / "iter_000004")
        shutil.rmtree(folder / "agent")
        (folder / "checkpoints" / "latest").write_text("iter_000002")
        assert run(*words, "--resume") == 0
        assert len(server.requests) == asked
    assert without_clocks(folder) == rows
    assert same(weights(folder / "agent"), agent)
    ledger = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    assert (
        {0.0, 1.0} <= {row["score"] for row in ledger} if mode == "rank" else len({row["score"] for row in ledger}) > 2
    )
    heard = {row["words/judge"].split(":")[0] for row in ledger if "words/judge" in row}
    assert heard == ({"Ranking"} if mode == "rank" else {"I cannot tell.", "Well. Score"})
