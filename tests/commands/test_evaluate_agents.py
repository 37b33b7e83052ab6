"""More agents, and more draws, in an evaluation."""

import json

import pytest
from evaluations import evaluated

from rlhf_dialog.commands.evaluate import EvaluateOptions
from rlhf_dialog.commands.evaluate_agents import folders_beside


def test_an_agent_beside_has_a_row_and_is_compared_with_the_start(script, runs, tmp_path):
    argv = ["--agent", runs[0], "--baseline", runs[1], "--max_prompts", 8]
    found = evaluated(script, tmp_path, *argv, "--beside", f"again={runs[0]}")
    assert found["sweep"]["again"] == found["after"]  # the same agent, prompts and seed
    assert found["beside"]["again"] == found["difference"]
    assert found["sweep_difference"]["again"]["score"] == {"mean": 0.0, "low": 0.0, "high": 0.0}


def test_the_mean_of_several_draws_counts(script, runs, tmp_path):
    """Each draw is what an evaluation with the next seed draws."""
    argv = ["--agent", runs[0], "--max_prompts", 8]
    one, other = (evaluated(script, tmp_path, *argv, "--seed", seed)["metrics"] for seed in (0, 1))
    replies = tmp_path / "replies.jsonl"
    both = evaluated(script, tmp_path, *argv, "--draws", 2, "--replies", replies)
    for name in ("mean_words", "distinct_2", "meteor"):
        assert both["metrics"][name]["mean"] == pytest.approx((one[name]["mean"] + other[name]["mean"]) / 2)
    assert both["metrics"]["reference_perplexity"]["mean"] == pytest.approx(one["reference_perplexity"]["mean"])
    assert both["settings"]["draws"] == 2
    first = json.loads(replies.read_text().splitlines()[0])["replies"]
    assert {"metrics", "metrics, draw 2"} <= set(first)


def test_the_name_of_a_row_is_given_or_that_of_the_run():
    def names(*beside):
        return folders_beside(EvaluateOptions(agent="a", output="o", beside=beside))

    assert names("seed 1=runs/x/agent", "runs/y/agent", "models/z") == {
        "seed 1": "runs/x/agent",
        "y": "runs/y/agent",
        "z": "models/z",
    }


@pytest.mark.parametrize(
    ("beside", "words"),
    [
        (["a=x", "a=y"], "--beside: two of a=x, a=y have the same name"),
        (["before=x"], "--beside: 'before' is the name of another row"),
        (["nowhere"], "--beside"),
    ],
)
def test_agents_that_cannot_stand_beside(script, runs, beside, words, tmp_path, capsys):
    argv = ["--agent", str(runs[0]), "--output", str(tmp_path / "e.json")]
    assert script.main([*argv, *(word for one in beside for word in ("--beside", one))]) == 2
    assert words in capsys.readouterr().err
