"""The life of a reward in a run: what it hears before it scores, its own numbers in the line, its state in checkpoints."""

import json

import pytest

from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation.measure import Judges, measure
from rlhf_dialog.evaluation.replies import Replies
from rlhf_dialog.rewards.scoring import Scorer
from tests.parts.judges import summed
from tests.parts.ppo_runs import rows, same, weights, without_clocks
from tests.parts.prices import Price

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("price")]


def reward_class(depth: int, picky: bool = False) -> list[str]:
    node = {"id": "Price", "args": {"picky": picky}}
    for _ in range(depth):
        node = {"id": "CompositeReward", "args": {"parts": [{"id": "LengthMatch"}, node]}}
    return ["--reward_class", json.dumps(node), "--on_reward_error", "skip" if picky else "stop"]


COEF = ("reward/price/coef", "reward/price/coef", "reward/composite/price/coef")  # at depth 0, 1, 2


@pytest.fixture
def registered(run):
    """`run` sets the classes of its own; Price comes after them."""
    RewardFactory.register("Price", Price)
    return run


@pytest.mark.parametrize(("depth", "picky"), [(0, True), (2, False)])
def test_a_price_that_adapts_goes_on_after_a_resume_as_if_nothing_had_happened(registered, tmp_path, depth, picky):
    words = [*reward_class(depth, picky), "--eval_interval", "2", "--eval_episodes", "4"]
    for name, lengths in (("parts", ("2", "4")), ("whole", ("4",))):
        for i, length in enumerate(lengths):
            resume = ["--resume"] if i else []
            assert registered(*words, "--experiment_name", name, "--max_iterations", length, *resume) == 0
    parts, whole = (tmp_path / "run_results" / name for name in ("parts", "whole"))
    coefs = [row[COEF[depth]] for row in rows(whole)]
    assert len(set(coefs)) == 4
    assert without_clocks(parts) == without_clocks(whole)
    assert same(weights(parts / "agent"), weights(whole / "agent"))
    assert (rows(whole)[0]["response/unscored"] > 0) == picky
    state = json.loads((whole / "checkpoints/iter_000004/trainer.json").read_text())["reward"]
    assert state == ({"composite": {"price": {"coef": coefs[-1]}}} if depth == 2 else {"coef": coefs[-1]})


def test_what_a_reward_hears_before_it_scores(registered):
    assert registered(*reward_class(1), "--max_iterations", "2", "--eval_interval", "2", "--eval_episodes", "4") == 0
    check = ("validation", 0, True)  # of two references
    assert Price.told == [check, ("rollout", 1, True), ("rollout", 2, True), ("validation", 2, True)]
    Price.told.clear()
    measure(Replies([Dialogue(["Hi ."], response="Ho .")], [2]), Judges(Scorer(summed(Price()))))
    assert Price.told == [("evaluation", 0, True)]


@pytest.mark.parametrize(("state", "said"), [({"x": 1}, "reward 'price' raised KeyError"), (3, "is damaged")])
def test_a_state_that_does_not_fit_is_the_users_error(registered, tmp_path, capsys, state, said):
    assert registered(*reward_class(0), "--max_iterations", "2") == 0
    path = tmp_path / "run_results/ppo/checkpoints/iter_000002/trainer.json"
    content = json.loads(path.read_text()) | {"reward": state}
    del content["sha256"]
    path.write_text(json.dumps(content))
    assert registered(*reward_class(0), "--max_iterations", "3", "--resume") == 2
    assert said in capsys.readouterr().err
