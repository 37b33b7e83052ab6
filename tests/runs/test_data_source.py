"""What a run is trained on: prompts, or dialogues with an environment, whose faults end the run with one message."""

import time
from types import SimpleNamespace

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

from rlhf_dialog import EnvironmentFactory, main
from rlhf_dialog.config.registry import BaselineFactory
from rlhf_dialog.config.schema import Config, EnvironmentConfig
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.dialogues import Played
from rlhf_dialog.models.generation import Responder, Sampling, StopRule
from rlhf_dialog.rewards import Meteor, NoReward
from rlhf_dialog.runs.data_source import DialogueValidation, build_simulated, play_dialogues, read_source, spoken
from tests.parts.ppo_runs import rows, same, settings, without_clocks
from tests.parts.rollouts import world as models_of
from tests.parts.text_environments import Letters


class Odd(Letters):
    def __init__(self, fault="none", words="more ?"):
        super().__init__(words)
        if fault == "constructor":
            raise FileNotFoundError("menu.txt")
        self.fault = fault

    def step(self, reply):
        found = super().step(reply)
        if self.fault == "raises":
            return found[0], {}["price"], *found[2:]
        if self.fault == "hangs":
            time.sleep(30)
        if self.fault == "endless":
            return (*found[:2], False, False, {})
        return found[:4] if self.fault == "short" else found


class Mute:
    def reset(self, seed=None):
        return "Hi", {}


@pytest.fixture
def own(world, tmp_path, monkeypatch):
    """`own("--key", "value")` runs dialogues with `Letters` or another environment of the user's."""
    monkeypatch.chdir(tmp_path)
    classes = {"Letters": Letters, "Odd": Odd, "Mute": Mute}
    monkeypatch.setattr(EnvironmentFactory, "classes", EnvironmentFactory.classes | classes)
    keys = {key: value for key, value in settings(world).items() if key not in ("env", "reward_class")}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(keys | {"environment": {"id": "Letters"}}), encoding="utf-8")
    return lambda *words: main(["--config", "own.yaml", *words])


@pytest.mark.slow
def test_a_run_with_an_environment_of_ones_own_and_its_resume(own, tmp_path, capsys):
    evaluated = ("--eval_interval", "2", "--eval_episodes", "5")
    assert own(*evaluated, "--max_iterations", "4", "--experiment_name", "whole") == 0
    shown = capsys.readouterr()
    assert "environment Letters; " in shown.err
    assert "| more ? -> " in shown.out
    two = (*evaluated, "--save_interval", "2", "--experiment_name", "two")
    assert own(*two, "--max_iterations", "2") == own(*two, "--max_iterations", "4", "--resume") == 0
    whole, two_ = (tmp_path / "run_results" / name for name in ("whole", "two"))
    assert without_clocks(whole) == without_clocks(two_)
    assert same(weights(whole), weights(two_))
    row = rows(whole)[1]
    assert {"environment/reward", "environment/success", "eval/success", "eval/score", "eval/distinct_2"} <= {*row}
    assert row["eval/score"] == row["eval/reward"]


def weights(folder):
    return AutoModelForCausalLM.from_pretrained(folder / "agent").state_dict()


@pytest.mark.slow
def test_adapters_learn_from_dialogues(own, tmp_path):
    words = ("--use_lora", "true", "--lora_r", "3", "--use_share_model", "true", "--max_prompt_length", "20")
    assert own(*words, "--max_iterations", "1") == 0
    start = AutoModelForCausalLM.from_pretrained(yaml.safe_load((tmp_path / "own.yaml").read_text())["model_path"])
    assert not same(weights(tmp_path / "run_results" / "own"), start.state_dict())


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("short", ["step returned"]),
        ("raises", ["KeyError", "'price'"]),
        ("hangs", ["0.2 seconds", "step_timeout_s"]),
        ("endless", ["4 replies", "max_turns"]),
        ("constructor", ["FileNotFoundError", "menu.txt"]),
    ],
)
def test_a_fault_of_an_environment_is_one_message(own, capsys, fault, words):
    limits = "step_timeout_s: 0.2" if fault == "hangs" else "max_turns: 4"
    assert own("--environment", f"{{id: Odd, args: {{fault: {fault}}}, {limits}}}") == 2
    shown = capsys.readouterr().err
    assert all(word in shown for word in ["environment Odd", *words])
    assert (shown.count("error: "), "Traceback" in shown) == (1, False)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("environment", "{id: Lettres}", ["'Lettres'", "'Letters'"]),
        ("environment", "{id: Letters, args: {word: a}}", ["environment", "Letters"]),
        ("environment", "{id: Mute}", ["environment Mute", "step"]),
        ("environment", "{id: restaurant, args: {domain: nowhere.json}}", ["nowhere.json"]),
        ("env.args.data_path", "daily_dialog", ["env.args.data_path", "Letters", "daily_dialog"]),
    ],
)
def test_a_wrong_environment_is_refused_before_anything_is_loaded(own, capsys, monkeypatch, option, value, words):
    monkeypatch.setattr("rlhf_dialog.runs.agent.load_models", lambda *_: pytest.fail("a model was loaded"))
    assert own(f"--{option}", value) == 2
    shown = capsys.readouterr().err
    assert all(word in shown for word in words)
    assert shown.count("error: ") == 1


def config(**keys):
    return Config(**{"model_path": "m", "environment": {"id": "restaurant"}, "eval_interval": 1, **keys})


def test_training_and_validation_have_other_dialogues():
    training, validation = read_source(config(), NoReward())
    assert training.seed_of(0) != validation.source.seed_of(0)
    assert validation.source.limits.max_turns == 1000


def test_validation_prompts_have_what_the_reward_needs(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"prompt": "Hi .", "reference": "Ho ."}\n')
    (tmp_path / "validation.jsonl").write_text('{"prompt": "Hi ."}\n')
    keys = {
        "env": {"args": {"data_path": str(tmp_path)}},
        "reward_class": {"id": "Meteor"},
        "environment": None,
        "turn_separator": "<EOU>",
    }
    with pytest.raises(UserError, match=r"validation split \(eval_interval\)"):
        read_source(config(**keys), Meteor(meteor_wordnet="off"))
    training, validation = read_source(config(**keys, eval_interval=0), Meteor(meteor_wordnet="off"))
    assert (len(training), validation) == (1, None)


def test_the_score_of_an_evaluation_is_all_that_is_paid():
    _, validation = read_source(config(), NoReward())
    some = [
        Played(Dialogue(["Hi"]).with_reply("a b a b", True), 2.0),
        Played(Dialogue(["Ho"]).with_reply("c d").with_user_turn("e").with_reply("f"), 3.0),
    ]
    assert isinstance(validation, DialogueValidation)
    found = validation.measure([some[:1], some[1:]], 3)
    assert (found["score"], found["turns"], found["words"]) == (2.5, 1.5, pytest.approx(2.75))
    assert (found["truncated"], found["distinct_2"]) == (0.5, 0.75)
    assert "success" not in found
    validation.compare(found["score"], 3)
    validation.compare(2.0, 4)
    assert [validation.wants_checkpoint(SimpleNamespace(iteration=i)) for i in (3, 4)] == [True, False]


def test_the_line_of_the_handcrafted_policy_is_known_where_acts_are_understood(own, tmp_path):
    _, validation = read_source(config(eval_episodes=3), NoReward())
    validation.check()
    assert validation.known["handcrafted_success"] == 1.0
    _, validation = read_source(config(environment={"id": "Letters"}), NoReward())
    validation.check()
    assert validation.known == {}


def test_dialogues_are_the_same_however_many_are_played_at_once(own):
    models, encoder = models_of()
    responder = Responder(models.policy, encoder, Sampling(5), StopRule(models.policy, models.tokenizer, "<EOU>"))
    environment = Config(**{"model_path": "m", "environment": {"id": "Letters"}}).environment
    torch.manual_seed(0)
    together = play_dialogues(responder, build_simulated(environment, 4, "test"), range(5))
    apart = play_dialogues(responder, build_simulated(environment, 4, "test"), range(5), at_once=2)
    assert [one.dialogue for one in together] == [one.dialogue for one in apart]
    shares = [sum(reply.count("e") / max(len(reply), 1) for reply in one.replies) for one in together]
    assert [one.reward for one in together] == pytest.approx(shares)


class Knock:
    """Says how often it was answered, and ends after the second reply; each reply `two` is paid."""

    baselines = ("counting",)

    def reset(self, seed=None):
        self.replies = 0
        return "knock", {}

    def step(self, reply):
        self.replies += 1
        return f"heard {self.replies}", float(reply == "two"), self.replies == 2, False, {}


class Counting:
    def __init__(self, environment, seed):
        self.environment = environment

    def begin(self, seed):
        self.words = iter(("one", "two"))
        return self.environment.reset(seed)[0]

    def reply(self):
        return next(self.words)


def test_an_environment_says_itself_which_baselines_understand_it(monkeypatch):
    monkeypatch.setattr(EnvironmentFactory, "classes", {"Knock": Knock, "Letters": Letters})
    monkeypatch.setattr(BaselineFactory, "classes", {"counting": Counting})
    source = build_simulated(EnvironmentConfig(id="Knock"), 0, "test")
    (one,) = spoken("counting", source, range(1))
    assert (one.replies, one.reward, one.dialogue.truncated) == (["one", "two"], 1.0, False)
    with pytest.raises(UserError, match="handcrafted: speaks acts, which Knock does not understand"):
        spoken("handcrafted", source, range(1))
    with pytest.raises(UserError, match="counting: speaks acts, which Letters does not understand"):
        spoken("counting", build_simulated(EnvironmentConfig(id="Letters"), 0, "test"), range(1))
