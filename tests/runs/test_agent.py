"""PPOAgent from Python, and what it refuses before anything is trained."""

import fcntl
from pathlib import Path

import pytest

from rlhf_dialog import ChatAgent, Config, PPOAgent, RewardFactory, UserError
from rlhf_dialog.distributed.world import World
from tests.parts import tiny
from tests.parts.ppo_runs import same, settings, weights

RUN = Path("run_results/ppo")


def test_a_run_folder_in_use_is_refused_before_anything_is_loaded(run, refused, tmp_path, monkeypatch):
    folder = tmp_path / "run_results" / "ppo"
    folder.mkdir(parents=True)
    (folder / ".lock").write_text('{"pid": 7, "host": "elsewhere", "since": "yesterday"}', encoding="utf-8")
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
    with pytest.raises(UserError, match="lr: found -1"):
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
    with pytest.raises(UserError, match="reward function: 'vowels, source "):
        PPOAgent.from_config(without, reward=named["vowels"], resume=True, max_iterations=3).train()
    assert PPOAgent(Config(**keys | {"max_iterations": 3}), resume=True, reward=vowels).train()["iteration"] == 3


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


def test_what_is_built_is_on_the_device_of_the_run(run, monkeypatch):
    """`build` alone, as the benchmark calls it, asks for device and processes as a run does."""
    world = World(local_rank=3)
    monkeypatch.setattr("rlhf_dialog.distributed.process_group.start", lambda config: world)
    trainer = PPOAgent.from_config("ppo.yaml").build()
    assert trainer.world is world


# -- what a folder holds


@pytest.mark.slow
def test_damaged_metrics_are_the_users_error(run, capsys):
    assert run("--max_iterations", "3") == 0
    lines = (RUN / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    damaged = lines[0] + b"Epoch 1\n" + lines[2]
    (RUN / "metrics.jsonl").write_bytes(damaged)
    capsys.readouterr()
    assert run("--max_iterations", "4", "--resume") == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert "run_results/ppo/metrics.jsonl: " in said
    assert "; line 2 is " in said
    assert (RUN / "metrics.jsonl").read_bytes() == damaged
