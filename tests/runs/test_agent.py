"""PPOAgent from Python, and what it refuses before anything is trained."""

import json
import time
from pathlib import Path

import pytest
import tiny
from ppo_runs import rows, same, weights, without_clocks
from trainers import settings

from rlhf_dialog import ChatAgent, PPOAgent, RewardFactory, UserError
from rlhf_dialog.distributed.world import World
from rlhf_dialog.rewards.processes import RewardProcesses
from rlhf_dialog.runs import agent as agent_module
from rlhf_dialog.runs.run import two_prompts

RUN = Path("run_results/ppo")


def test_a_run_folder_in_use_is_refused_before_anything_is_loaded(run, refused, tmp_path, monkeypatch):
    folder = tmp_path / "run_results" / "ppo"
    folder.mkdir(parents=True)
    lock = {"pid": 7, "host": "elsewhere", "process_start": "1", "since": "yesterday"}
    (folder / ".lock").write_text(json.dumps(lock), encoding="utf-8")
    monkeypatch.setattr("rlhf_dialog.runs.agent.load_models", lambda *_: pytest.fail("a model was loaded"))
    message = refused()
    assert "run_results/ppo: in use by process 7 on elsewhere since yesterday" in message
    assert [path.name for path in folder.iterdir()] == [".lock"]


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
    monkeypatch.setattr("rlhf_dialog.distributed.launch.start", lambda config: world)
    trainer = PPOAgent.from_config("ppo.yaml").build()
    assert trainer.world is world


@pytest.mark.whole_run
def test_the_python_interface_with_wandb_offline(run, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    closed = []
    monkeypatch.setattr(RewardProcesses, "close", lambda self: closed.append(self))
    agent = PPOAgent.from_config("ppo.yaml", max_iterations=None, **{"env.args.tokenizer_path": None, "seed": 3})
    with pytest.raises(UserError, match=r"train\(\) first"):
        agent.save("early")
    metrics = agent.train(total_time_steps=60, use_wandb=True, use_tensorboard=True)
    assert metrics["time_steps"] >= 60
    assert closed == [agent.trainer.scorer.rules.processes]  # the agent keeps its trainer
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


def test_from_python_mistakes_are_user_errors(run):
    with pytest.raises(UserError, match="lr: found -1"):
        PPOAgent.from_config("ppo.yaml", lr=-1)
    with pytest.raises(UserError, match="total_time_steps"):
        PPOAgent.from_config("ppo.yaml").train(total_time_steps=0)


@pytest.mark.parametrize(("name", "number"), [("gae", 1), ("grpo", 4), ("rloo", 4), ("reinforce_pp", 1)])
def test_the_smoke_test_has_two_prompts_with_every_estimator(name, number):
    small = two_prompts(settings(advantage_estimator=name, rollout_batch_size=40), "folder", 1)
    assert (small.num_responses_per_prompt, small.rollout_batch_size) == (number, 2 * number)


# -- wandb


def test_wandb_opens_before_the_models_and_after_what_is_checked_first(run, wandb, monkeypatch):
    def load_models(*_):
        assert len(wandb.runs) == 1
        assert (RUN / ".lock").exists()  # it writes there
        raise UserError("stop here")

    monkeypatch.setattr(agent_module, "load_models", load_models)
    assert run("--use_wandb", "true", "--env.args.data_path", "./absent") == 2
    assert wandb.runs == []
    assert not RUN.parent.exists()
    assert run("--use_wandb", "true") == 2
    assert wandb.runs[0].is_finished
    assert not RUN.parent.exists()


@pytest.mark.whole_run
def test_a_wandb_that_dies_in_a_run_leaves_the_run_alone(run, wandb, monkeypatch, capsys):
    monkeypatch.setattr(agent_module.PPOAgent, "_save_agent", failing_first(wandb))
    assert run("--use_wandb", "true", "--max_iterations", "2") == 0
    assert run("--max_iterations", "2", "--experiment_name", "plain") == 0
    said = capsys.readouterr().err
    assert said.count("warning: wandb has failed and is not used any more") == 1
    assert said.count("agent saved") == 2
    assert without_clocks(RUN) == without_clocks(RUN.with_name("plain"))
    assert wandb.runs[0].steps == [1, 2]


def failing_first(wandb):
    """`_save_agent` that lets wandb fail from then on; wandb is still open, because its upload comes last."""
    real = agent_module.PPOAgent._save_agent

    def save_agent(self):
        real(self)
        assert not wandb.runs[0].is_finished
        wandb.errors["finish"] = ConnectionResetError("Connection lost")

    return save_agent


@pytest.mark.whole_run
def test_a_resumed_run_is_one_run_of_wandb_and_a_branch_another(run, wandb):
    words = ["--use_wandb", "true", "--save_interval", "1"]
    assert run(*words, "--max_iterations", "2") == 0
    assert run(*words, "--max_iterations", "3", "--resume") == 0
    assert run(*words, "--max_iterations", "3", "--resume_from", "2") == 0
    first, resumed, branch = (asked["id"] for asked in wandb.asked)
    assert first == resumed != branch
    assert [one.steps for one in wandb.runs] == [[1, 2], [3], [3]]
    assert (RUN / "wandb_run_id").read_text() == branch


@pytest.mark.whole_run
def test_overwriting_keeps_what_wandb_writes_for_the_new_run(run, wandb, monkeypatch):
    real = wandb.init

    def init(**words):
        opened = real(**words)
        Path(opened.dir).mkdir(parents=True)
        return opened

    monkeypatch.setattr(wandb, "init", init)
    words = ["--use_wandb", "true", "--max_iterations", "1"]
    assert run(*words) == 0
    assert run(*words, "--overwrite") == 0
    assert [path.name for path in (RUN / "wandb").iterdir()] == [Path(wandb.runs[1].dir).parent.name]
    assert (RUN / "wandb_run_id").read_text() == wandb.asked[1]["id"] != wandb.asked[0]["id"]


# -- --resume auto


@pytest.mark.whole_run
def test_resume_auto_begins_a_run_and_goes_on_with_it(run, capsys):
    words = ["--resume", "auto", "--save_interval", "1"]
    assert run("--resume", "--max_iterations", "1") == 2
    assert "contains no checkpoint to resume from" in capsys.readouterr().err
    assert run(*words, "--max_iterations", "1") == 0
    assert run(*words, "--max_iterations", "2") == 0
    assert "resumed after iteration 1" in capsys.readouterr().err
    assert [row["iteration"] for row in rows(RUN)] == [1, 2]
    before = (RUN / "metrics.jsonl").read_bytes()
    assert run(*words, "--max_iterations", "2") == 0  # of a finished run
    assert (RUN / "metrics.jsonl").read_bytes() == before
    assert run("--max_iterations", "2") == 2  # without it, a run in the folder is refused as ever


@pytest.mark.whole_run
def test_resume_auto_takes_the_weights_of_another_run_only_to_begin_with(run, capsys):
    assert run("--max_iterations", "1", "--experiment_name", "old") == 0
    words = ["--resume", "auto", "--resume_weights_only", "run_results/old", "--save_interval", "1"]
    assert run(*words, "--max_iterations", "1") == 0
    assert "loaded the weights of" in capsys.readouterr().err
    assert run(*words, "--max_iterations", "2") == 0
    said = capsys.readouterr().err
    assert "loaded the weights of" not in said
    assert "resumed after iteration 1" in said


@pytest.mark.whole_run
def test_resume_auto_begins_again_where_a_kill_came_before_the_weights_were_saved(run, capsys):
    assert run("--max_iterations", "1", "--experiment_name", "old") == 0
    (RUN / "checkpoints/.iter_000000.tmp").mkdir(parents=True)
    (RUN / "config.yaml").write_text("")
    words = ["--resume", "auto", "--resume_weights_only", "run_results/old", "--max_iterations", "1"]
    assert run(*words) == 0
    assert "loaded the weights of" in capsys.readouterr().err


def test_resume_auto_does_not_go_on_where_another_run_is_working(run, capsys):
    RUN.mkdir(parents=True)
    lock = {"pid": 7, "host": "elsewhere", "process_start": "1", "since": "then", "heartbeat": int(time.time())}
    (RUN / ".lock").write_text(json.dumps(lock))
    assert run("--resume", "auto") == 2
    assert "in use by process 7 on elsewhere" in capsys.readouterr().err


# -- what a folder holds


@pytest.mark.whole_run
@pytest.mark.parametrize("line", [b'{"iteration": 2, "x": "\\xff"}\n', b"Epoch 1\n", b""])
def test_damaged_metrics_are_the_users_error(run, capsys, line):
    assert run("--max_iterations", "3") == 0
    lines = (RUN / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    damaged = lines[0] + line.replace(b"\\xff", b"\xff") + lines[2]
    (RUN / "metrics.jsonl").write_bytes(damaged)
    capsys.readouterr()
    assert run("--max_iterations", "4", "--resume") == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert "run_results/ppo/metrics.jsonl: " in said
    assert "; line 2 is " in said
    assert (RUN / "metrics.jsonl").read_bytes() == damaged
