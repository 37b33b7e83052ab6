"""PPOAgent from Python, what a run begins with, and what it refuses before anything is trained."""

import contextlib
import fcntl
from pathlib import Path

import pytest
from pydantic import ValidationError

from rlhf_dialog import ChatAgent, Config, PPOAgent, RewardFactory, UserError
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import SignalExit
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.rewards.length import LengthMatch
from rlhf_dialog.runs import agent as agent_module
from rlhf_dialog.runs import smoke as smoke_module
from rlhf_dialog.runs.optional_outputs import OptionalOutputs
from rlhf_dialog.runs.services.trackers import TrackerService
from rlhf_dialog.runs.services.validation import ValidationService
from rlhf_dialog.runs.smoke import two_prompts
from tests.parts import tiny
from tests.parts.ppo_runs import rows, same, settings, weights
from tests.parts.trainers import settings as trainer_settings

RUN = Path("run_results/ppo")


def test_a_run_folder_in_use_is_refused_before_anything_is_loaded(run, refused, tmp_path, monkeypatch):
    folder = tmp_path / "run_results" / "ppo"
    folder.mkdir(parents=True)
    (folder / ".lock").write_text("process 7 on elsewhere since yesterday", encoding="utf-8")
    monkeypatch.setattr("rlhf_dialog.runs.agent.load_models", lambda *_: pytest.fail("a model was loaded"))
    with (folder / ".lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        message = refused()
    assert "run_results/ppo: in use by process 7 on elsewhere since yesterday" in message
    assert [path.name for path in folder.iterdir()] == [".lock"]


@pytest.mark.slow
def test_the_python_interface_with_wandb_offline(run, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    agent = PPOAgent.from_config("ppo.yaml", max_iterations=None, **{"env.args.tokenizer_path": None, "seed": 3})
    with pytest.raises(UserError, match=r"train\(\) first"):
        agent.save("early")
    metrics = agent.train(total_time_steps=60, use_wandb=True, use_tensorboard=True)
    assert metrics["time_steps"] >= 60
    agent.save("./ppo_agent")
    assert isinstance(ChatAgent.load("./ppo_agent").chat("Hello", history=["Hi", "Hi"]), str)
    folder = tmp_path / "run_results" / "ppo"
    assert same(weights(tmp_path / "ppo_agent"), weights(folder / "agent"))
    assert {path.name for path in tmp_path.iterdir()} == {"ppo.yaml", "run_results", "ppo_agent"}
    assert list((folder / "tensorboard").glob("events.out.tfevents.*"))
    assert list((folder / "wandb").glob("offline-run-*/*.wandb"))
    again = PPOAgent.from_config("ppo.yaml")
    with pytest.raises(UserError, match="already contains a run"):
        again.train()


def test_settings_from_python_are_a_dict_or_a_config_and_their_mistakes_user_errors(run, world):
    keys = settings(world)
    assert PPOAgent.from_config(keys, lr=2e-3).config.lr == 2e-3
    dotted = {"env.args.data_path": "./data"} | {key: value for key, value in keys.items() if key != "env"}
    assert PPOAgent.from_config(dotted).config.env.args.data_path == "./data"
    assert keys == settings(world)
    assert str(PPOAgent.from_config(keys).run_folder) == str(PPOAgent(Config(**keys)).run_folder) == str(RUN)
    for make in (PPOAgent.from_config, lambda wrong: PPOAgent(Config(**wrong))):
        with pytest.raises(UserError, match=r"2 problems\n.*lr: found -1, wanted .*\n.*kl_coeff: .*'kl_coef'"):
            make(keys | {"lr": -1, "kl_coeff": 0.1})
    config = Config(**keys)
    with pytest.raises(ValidationError, match="frozen"):
        config.lr = -1
    assert config.lr == 1e-3
    with pytest.raises(UserError, match="3 is no key"):
        PPOAgent.from_config(keys | {3: 4})


def vowels(dialogues):
    return [sum(letter in "aeiou" for letter in dialogue.response) / 10 for dialogue in dialogues]


def consonants(prompts, completions, **columns):
    return [sum(letter not in "aeiou" for letter in text) / 10 for text in completions]


@pytest.mark.slow
def test_a_function_as_the_reward_learns_as_a_class_does_and_a_changed_one_refuses_a_resume(run, world, tmp_path):
    keys = settings(world) | {"reward_class": {"id": "Vowels"}}
    PPOAgent.from_config(keys, experiment_name="of_a_class").train()
    without = {key: value for key, value in keys.items() if key != "reward_class"}
    PPOAgent.from_config(without, reward=vowels).train()
    assert same(weights(RUN / "agent"), weights(RUN.parent / "of_a_class" / "agent"))
    for reward in (consonants, lambda dialogues: vowels(dialogues)):
        with pytest.raises(UserError, match="reward_class"):
            PPOAgent.from_config(keys, reward=reward, resume=True, max_iterations=3).train()
    named, source = {"__name__": "mine"}, tmp_path / "mine.py"
    source.write_text("def vowels(dialogues):\n    return [0.0 for dialogue in dialogues]\n", encoding="utf-8")
    exec(compile(source.read_text(encoding="utf-8"), source, "exec"), named)
    with pytest.raises(UserError, match=r"code of the reward.*vowels.*--allow_changed_reward"):
        PPOAgent.from_config(without, reward=named["vowels"], resume=True, max_iterations=3).train()
    assert PPOAgent(Config(**keys | {"max_iterations": 3}), resume=True, reward=vowels).train()["iteration"] == 3


@pytest.mark.slow
def test_a_function_that_the_yaml_names_learns_as_a_class_does_and_a_changed_file_refuses_a_resume(
    run, world, tmp_path, caplog
):
    """Its file draws and seeds random numbers when it is loaded, which does not change those of the run."""
    text = "import random\nrandom.seed(3)\nSCALE = 10\n\n\ndef vowels(dialogues, scale):\n    " + (
        "return [sum(letter in 'aeiou' for letter in d.response) / scale for d in dialogues]\n"
    )
    file = tmp_path / "own/vowel_rewards.py"
    file.parent.mkdir()
    file.write_text(text, encoding="utf-8")
    named = {"id": "own/vowel_rewards.py:vowels", "args": {"scale": 10}}
    keys = settings(world)
    PPOAgent.from_config(keys | {"reward_class": {"id": "Vowels"}}, experiment_name="of_a_class").train()
    keys |= {"reward_class": named, "guard": {"judge": named}, "eval_interval": 1, "eval_episodes": 2}
    metrics = PPOAgent.from_config(keys).train()
    assert same(weights(RUN / "agent"), weights(RUN.parent / "of_a_class" / "agent"))
    assert metrics["eval/judge_vowels"] == metrics["eval/score"]
    file.write_text(text.replace("SCALE = 10", "SCALE = 11"), encoding="utf-8")
    more = {"resume": True, "max_iterations": metrics["iteration"] + 1}
    with pytest.raises(UserError, match=r"code of the reward.*vowel_rewards\.py.*--allow_changed_reward"):
        PPOAgent.from_config(keys, **more).train()
    PPOAgent.from_config(keys | {"allow_changed_reward": True}, **more).train()
    assert "goes on with the changed one" in caplog.text


# -- what is refused before models are loaded, and where they are


def test_a_reward_that_needs_acts_on_data_without_acts(refused, tmp_path, rewards):
    (tmp_path / "train.jsonl").write_text('{"dialog": ["Hello there .", "Hi .", "Bye ."]}\n', encoding="utf-8")

    @RewardFactory.register("WantsActs")
    class WantsActs(RewardFactory.classes["Vowels"]):  # type: ignore[misc]
        needs = ("act",)

    message = refused("--env.args.data_path", "train.jsonl", "--reward_class", "{id: WantsActs}")
    assert "2 of 2 prompts have no act" in message
    assert "wantsacts" in message.lower()


def test_the_separator_of_the_run_is_what_data_must_not_hold(refused, tmp_path):
    (tmp_path / "train.jsonl").write_text('{"dialog": ["Hello there .", "=/="]}\n', encoding="utf-8")
    keys = ("--reward_class", "{id: Vowels}", "--turn_separator", "=/=")
    assert "dialogue 1 has a turn" in refused("--env.args.data_path", "train.jsonl", *keys)


def test_a_tokenizer_of_another_model_is_refused(refused, tmp_path):
    words = tiny.byte_tokenizer()
    words.add_tokens(["more"])
    words.save_pretrained(tmp_path / "words")
    assert "260 tokens" in refused("--env.args.tokenizer_path", "./words")


def test_what_is_cheap_is_done_before_models_are_loaded_under_the_lock(run, monkeypatch):
    names = ["settle_config", "seed_rank", "batch_plan", "check_placement", "warn_of_memory", "build_reward"]
    names += ["read_source", "lock_folder", "load_models", "keep_with_room", "settle_sizes", "report_size"]
    calls, moved = [], []
    monkeypatch.setattr(BaseReward, "move_to", lambda self, device: moved.append(device) or self)
    for name in names:
        real = getattr(agent_module, name)
        monkeypatch.setattr(agent_module, name, lambda *a, name=name, real=real: calls.append(name) or real(*a))
    agent = PPOAgent.from_config("ppo.yaml")
    with contextlib.ExitStack() as stack:
        agent.build(stack)
        assert (RUN / ".lock").exists()
    assert calls == names
    assert {*moved} == {"cpu"}


def test_the_services_of_a_run_in_the_order_of_an_iteration(tmp_path):
    keys = {"eval_interval": 1, "guard": {"judge": {"id": "LengthMatch"}}, "run_dir": str(tmp_path)}
    agent = PPOAgent(trainer_settings(**keys))
    validation = ValidationService(agent.config, [Dialogue(["a"], reference="b")], LengthMatch())
    trackers = TrackerService(agent.config, agent.run_folder, World(), goes_on=False)
    found = agent.build_services(validation, trackers)
    kinds = ["LedgerService", "ValidationService", "RunGuard", "TrackerService", "ReportService", "Interrupts"]
    assert [type(service).__name__ for service in found] == kinds
    assert [type(service).__name__ for service in agent.build_services(None, trackers)] == [kinds[0], *kinds[3:]]


def test_what_is_built_is_on_the_device_of_the_run(run, monkeypatch):
    """`build` alone, as the benchmark calls it, asks for device and processes as a run does."""
    world = World()
    monkeypatch.setattr("rlhf_dialog.distributed.process_group.start", lambda config: world)
    trainer = PPOAgent.from_config("ppo.yaml").build()
    assert trainer.world is world


@pytest.mark.slow
def test_resume_auto_begins_a_run_and_goes_on_with_it(run, capsys):
    words = ["--resume", "auto", "--resume_weights_only", "run_results/old", "--save_interval", "1"]
    assert run("--max_iterations", "1", "--experiment_name", "old") == 0
    assert run("--resume", "--max_iterations", "1") == 2
    assert "contains no checkpoint to resume from" in capsys.readouterr().err
    assert run(*words, "--max_iterations", "1") == 0
    assert "loaded the weights of" in capsys.readouterr().err
    assert run(*words, "--max_iterations", "2") == 0
    said = capsys.readouterr().err
    assert ("loaded the weights of" in said, "resumed after iteration 1" in said) == (False, True)
    assert [row["iteration"] for row in rows(RUN)] == [1, 2]
    before = (RUN / "metrics.jsonl").read_bytes()
    assert run(*words, "--max_iterations", "2") == 0  # of a finished run
    assert (RUN / "metrics.jsonl").read_bytes() == before
    assert run("--max_iterations", "2") == 2  # without it, a run in the folder is refused as ever


@pytest.mark.parametrize(("name", "number"), [("gae", 1), ("rloo", 4)])
def test_the_smoke_test_has_two_prompts_with_every_estimator(name, number):
    small = two_prompts(trainer_settings(advantage_estimator=name, rollout_batch_size=40), "folder", 1)
    assert (small.num_responses_per_prompt, small.rollout_batch_size) == (number, 2 * number)
    of_ranks = two_prompts(trainer_settings(advantage_estimator=name, rollout_batch_size=40), "folder", 5)
    assert of_ranks.rollout_batch_size == 5 * number


def test_the_smoke_test_trains_once_in_a_folder_that_goes_and_lets_the_agent_reply(tmp_path, monkeypatch):
    calls, agent = [], PPOAgent(trainer_settings(run_dir=str(tmp_path / "runs"), experiment_name="x"))
    monkeypatch.setattr(PPOAgent, "check_outputs", lambda _: calls.append("outputs"))
    monkeypatch.setattr(smoke_module, "check_placement", lambda config, device: calls.append(config is agent.config))
    monkeypatch.setattr(PPOAgent, "train", lambda small: calls.append((small.is_trial, small.run_folder.parent.parent)))
    monkeypatch.setattr(smoke_module, "_answer_once", lambda small: calls.append(small.run_folder.parent.is_dir()))
    smoke_module.smoke(agent)
    assert calls == ["outputs", True, (True, tmp_path), True]
    assert list(tmp_path.iterdir()) == []


class Thing:
    def __init__(self, closed):
        self.closed = closed

    def close(self):
        self.closed.append(self)


def test_what_fails_is_closed_and_warned_of_once(caplog):
    things, closed = OptionalOutputs(), []
    things.add("one", lambda: Thing(closed))
    things.add("two", lambda: Thing(closed))
    things.add("three", lambda: 1 / 0)
    for _ in range(2):
        things.use("one", lambda _: 1 / 0)
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "three has failed and is not used any more",
        "one has failed and is not used any more",
    ]
    assert (list(things.others), len(closed)) == (["two"], 1)

    def leave(_):
        raise SignalExit(143)

    with pytest.raises(SignalExit):
        things.use("two", leave)
    things.close()
    assert len(closed) == 2
