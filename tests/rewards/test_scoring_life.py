"""The life of a reward in a run: what it is told before it scores, its own numbers in the line, its state in checkpoints."""

import json
import math
import threading
from pathlib import Path

import pytest
from ranks import in_ranks
from rlhf_dialog.evaluation.evaluate import Judges, Replies, measure
from test_agent import rewards, rows, run, same, weights, without_clocks, world  # noqa: F401  fixtures
from tiny import byte_tokenizer
from transformers import BertConfig, BertForSequenceClassification

from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.rewards import BaseReward, CompositeReward, RewardError, build_reward
from rlhf_dialog.rewards.base import Part, models_inside
from rlhf_dialog.rewards.composite import model_paths
from rlhf_dialog.rewards.scoring import begin_scoring, load_state, metrics_of, state_of
from rlhf_dialog.training.iteration_metrics import reward_metrics

ASKED: list = []  # what all prices were told: purpose, iteration, whether in the main thread


class Price(BaseReward):
    """A price on letters that rises while responses are longer than two, as rollouts show; None for every third, if picky."""

    name = "price"
    told = ASKED

    def __init__(self, picky: bool = False):
        self.coef, self.moves, self.picky = 1.0, False, picky

    def begin_scoring(self, purpose, iteration):
        self.moves = purpose == "rollout"
        Price.told.append((purpose, iteration, threading.current_thread() is threading.main_thread()))

    def __call__(self, dialogues):
        lengths = [len(dialogue.response) for dialogue in dialogues]
        values = [-self.coef * length / 10 for length in lengths]
        if self.moves:
            self.coef *= 1 + (sum(lengths) / len(lengths) - 2) / 100
        return [None if self.picky and i % 3 == 2 else value for i, value in enumerate(values)]

    def metrics(self):
        return {"coef": self.coef}

    def state_dict(self):
        return {"coef": self.coef}

    def load_state_dict(self, state):
        self.coef = state["coef"]


class Halved(BaseReward):
    """A reward that asks another one, given in Python."""

    name = "halved"

    def __init__(self, inner):
        self.inner = inner

    def __call__(self, dialogues):
        return [score / 2 for score in self.inner(dialogues)]

    def children(self):
        return [self.inner]


def summed(*rewards):  # noqa: F811
    reward = CompositeReward.__new__(CompositeReward)
    reward._set_parts([Part(0.5, one) for one in rewards])
    return reward


@pytest.fixture(autouse=True)
def price(monkeypatch):
    monkeypatch.setattr(RewardFactory, "classes", RewardFactory.classes | {"Price": Price})
    Price.told.clear()


def reward_class(depth: int, picky: bool = False) -> list[str]:
    node = {"id": "Price", "args": {"picky": picky}}
    for _ in range(depth):
        node = {"id": "CompositeReward", "args": {"parts": [{"id": "LengthMatch"}, node]}}
    return ["--reward_class", json.dumps(node), "--on_reward_error", "skip" if picky else "stop"]


COEF = ("reward/price/coef", "reward/price/coef", "reward/composite/price/coef")  # at depth 0, 1, 2


@pytest.fixture
def registered(run):  # noqa: F811
    """`run` sets the classes of its own; Price comes after them."""
    RewardFactory.register("Price", Price)
    return run


@pytest.mark.parametrize(("depth", "picky"), [(0, False), (0, True), (2, False), (2, True)])
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


def test_a_validation_moves_no_price(registered, tmp_path):
    words = [*reward_class(1), "--max_iterations", "3"]
    assert registered(*words, "--experiment_name", "without") == 0
    assert registered(*words, "--experiment_name", "with", "--eval_interval", "1", "--eval_episodes", "4") == 0
    lines = [without_clocks(tmp_path / "run_results" / name) for name in ("without", "with")]
    assert lines[0] == [{k: v for k, v in row.items() if not k.startswith("eval/")} for row in lines[1]]


def test_what_a_reward_hears_before_it_scores(registered):
    assert registered(*reward_class(1), "--max_iterations", "2", "--eval_interval", "2", "--eval_episodes", "4") == 0
    check = ("validation", 0, True)  # of two references
    assert Price.told == [check, ("rollout", 1, True), ("rollout", 2, True), ("validation", 2, True)]
    Price.told.clear()
    measure(Replies([Dialogue(["Hi ."], response="Ho .")], [2]), Judges(summed(Price())))
    assert Price.told == [("evaluation", 0, True)]


def test_a_checkpoint_without_a_state_of_the_reward_is_resumed(registered, tmp_path):
    assert registered(*reward_class(0), "--max_iterations", "2") == 0
    path = tmp_path / "run_results/ppo/checkpoints/iter_000002/trainer.json"
    state = json.loads(path.read_text())
    del state["reward"]
    path.write_text(json.dumps(state))
    assert registered(*reward_class(0), "--max_iterations", "3", "--resume") == 0
    assert [row["iteration"] for row in rows(tmp_path / "run_results/ppo")] == [1, 2, 3]


@pytest.mark.parametrize(("state", "said"), [({"x": 1}, "reward 'price' raised KeyError"), (3, "is damaged")])
def test_a_state_that_does_not_fit_is_the_users_error(registered, tmp_path, capsys, state, said):
    assert registered(*reward_class(0), "--max_iterations", "2") == 0
    path = tmp_path / "run_results/ppo/checkpoints/iter_000002/trainer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"reward": state}))
    assert registered(*reward_class(0), "--max_iterations", "3", "--resume") == 2
    assert said in capsys.readouterr().err


def test_weights_alone_start_with_a_new_price(registered, tmp_path, caplog):
    assert registered(*reward_class(0), "--max_iterations", "2") == 0
    more = ["--resume_weights_only", "run_results/ppo", "--experiment_name", "new", "--max_iterations", "1"]
    assert registered(*reward_class(0), *more) == 0
    state = json.loads((tmp_path / "run_results/new/checkpoints/iter_000000/trainer.json").read_text())
    assert state["reward"] == {"coef": 1.0}
    assert "the state of the reward begin anew" in caplog.text


def test_the_rewards_of_the_documentation(monkeypatch, tmp_path):
    """They register themselves, score, and say what the tables say of them."""
    page = (Path(__file__).parents[1] / "docs" / "REWARDS.md").read_text(encoding="utf-8")
    _, warmth, clipped, budget = (part.split("```")[0] for part in page.split("```python\n")[1:])
    names: dict = {}
    for code in (warmth, clipped, budget):
        exec(code, names)
    tokenizer = byte_tokenizer()
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    BertForSequenceClassification(BertConfig(**sizes, intermediate_size=16)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    part = {"id": "Warmth", "args": {"folder": str(tmp_path)}}
    assert model_paths("CompositeReward", {"parts": [part]}) == {"warmth model": str(tmp_path)}
    warm = build_reward("CompositeReward", {"parts": [part]})
    assert list(models_inside(names["Clipped"](warm))) == ["warmth model"]
    dialogues = [Dialogue(["Hi ."], response="Hello . " * n) for n in (4, 20)]
    assert all(0 < score < 1 for score in warm(dialogues))
    assert names["Clipped"](warm, low=2.0, high=3.0)(dialogues) == [2.0, 2.0]
    words = build_reward("WordBudget", {})
    begin_scoring(words, "validation", 1)
    assert (words(dialogues), metrics_of(words)) == ([0.0, 0.0], {"budget/price": 0.0})
    begin_scoring(words, "rollout", 2)
    words(dialogues)
    price = 0.1 * (24 - 12) / 12  # 8 and 40 words
    assert state_of(words) == {"price": pytest.approx(price)}
    assert words(dialogues) == [pytest.approx(-8 * price), pytest.approx(-40 * price)]


def priced(*coefs):
    found = [Price() for _ in coefs]
    for one, coef in zip(found, coefs, strict=True):
        one.coef = coef
    return found


def test_names_of_states_and_numbers_inside_of_rewards():
    one, two, three = priced(1.0, 2.0, 3.0)
    reward = summed(one, two, summed(Halved(three)))
    states = {"price": {"coef": 1.0}, "price_2": {"coef": 2.0}, "composite": {"halved": {"price": {"coef": 3.0}}}}
    assert state_of(reward) == states
    names = {"price/coef": 1.0, "price_2/coef": 2.0, "composite/halved/price/coef": 3.0}
    assert metrics_of(reward) == names
    load_state(reward, {"price_2": {"coef": 5.0}, "composite": {"halved": {"price": {"coef": 6.0}}}, "gone": {}})
    assert [reward.coef for reward in (one, two, three)] == [1.0, 5.0, 6.0]
    begin_scoring(reward, "rollout", 7)
    assert Price.told == [("rollout", 7, True)] * 3


def test_a_number_of_a_sum_itself_cannot_be_taken_for_a_part():
    reward = summed(*priced(1.0))
    reward.metrics = lambda: {"price": 2.0, "price/coef": 1.0, "other/coef": 3}
    assert metrics_of(reward) == {"composite/price": 2.0, "price/coef": 1.0, "composite/other/coef": 3.0}


def test_a_reward_without_a_life():
    class Plain(BaseReward):
        def __call__(self, dialogues):
            return [1.0] * len(dialogues)

    reward = summed(Plain(), Halved(Plain()))
    begin_scoring(reward, "evaluation", 0)
    load_state(reward, {})
    assert (metrics_of(reward), state_of(reward)) == ({}, {})


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    ("method", "ask"),
    [
        ("begin_scoring", lambda reward: begin_scoring(reward, "rollout", 1)),
        ("metrics", metrics_of),
        ("state_dict", state_of),
        ("load_state_dict", lambda reward: load_state(reward, {"price": {}})),
    ],
)
def test_an_error_in_its_life_names_the_reward_and_the_line(nested, method, ask):
    class Broken(Price):
        pass

    def bad(*_):
        raise ZeroDivisionError("no")

    setattr(Broken, method, bad)
    with pytest.raises(
        RewardError, match=r"^reward 'price' raised ZeroDivisionError: no at .*test_reward_life\.py:\d+$"
    ):
        ask(summed(Broken()) if nested else Broken())


@pytest.mark.parametrize(
    ("method", "value", "said"),
    [
        ("metrics", {"coef": "high"}, "metrics() has 'high' as 'coef'; give a number"),
        ("metrics", {"coef": None}, "metrics() has None as 'coef'; give a number"),
        ("state_dict", {"seen": {1, 2}}, "state_dict() is not JSON (Object of type set is not JSON serializable)"),
        ("state_dict", [1.0], "state_dict() returned list; return a dict"),
    ],
)
def test_what_its_life_may_not_return(method, value, said):
    reward = Price()
    setattr(reward, method, lambda: value)
    with pytest.raises(RewardError) as caught:
        {"metrics": metrics_of, "state_dict": state_of}[method](reward)
    assert f"reward 'price': {said}" in str(caught.value)


def test_a_number_that_is_not_finite_is_logged_as_it_is():
    assert math.isnan(metrics_of(*priced(math.nan))["price/coef"])


def of_rank(world):  # noqa: F811
    episodes = [[0], [0, 0, 0], []][world.rank]  # its number counts as many times as it scored episodes
    return reward_metrics(priced(world.rank + 1.0)[0], episodes, world)


@pytest.mark.multiprocess
def test_the_numbers_of_several_ranks_are_the_mean_by_episodes():
    assert in_ranks(3, of_rank) == [{"reward/price/coef": (1 * 1.0 + 3 * 2.0) / 4}] * 3


@pytest.mark.multiprocess
def test_a_broken_number_on_one_rank_ends_all():
    def asked(world):  # noqa: F811
        reward = priced(1.0 if world.rank else "x")[0]
        with pytest.raises((RewardError, Exception), match="give a number"):
            reward_metrics(reward, [0], world)

    in_ranks(2, asked)
