"""What decides a run of PPO, and what does not: no path is among it."""

from pathlib import Path

from experiments.dailydialog import sizes, training
from experiments.dailydialog.scene import Scene
from experiments.dailydialog.sizes import TINY


def scene(work, size="tiny"):
    made = Scene(Path("data"), work, size, None, print)
    made.plan = {"use_amp": True, "epochs": 3, "tokens": 50_000}
    return made


def test_what_decides_names_no_folder(tmp_path):
    made = scene(tmp_path / "work")
    decides = [training.ppo_settings(made, agent) for agent in TINY.agents]
    decides += [training.supervised_settings(made, stage) for stage in sizes.SUPERVISED]
    assert str(tmp_path) not in str([*decides, training.draws_settings(made), training.dpo_settings(made)])


def test_an_agent_without_groups_has_one_response_to_a_prompt(tmp_path):
    made = scene(tmp_path)
    keys = {agent.folder: training.ppo_keys(made, agent) for agent in TINY.agents}
    assert keys["gae_0"]["num_responses_per_prompt"] is None
    assert keys["gae_0"]["advantage_estimator"] == "gae"
    assert keys["rloo_1"]["num_responses_per_prompt"] == 4
    assert {keys[name]["total_time_steps"] for name in keys} == {50_000}


def test_bfloat16_is_what_was_estimated(tmp_path):
    short = scene(tmp_path, "short")
    assert training.supervised_keys(short, "sft")["use_amp"] is True
    assert "use_amp" not in training.supervised_keys(short, "relevance")
    assert training.supervised_keys(scene(tmp_path), "sft")["use_amp"] is False  # tiny asks for float32


def test_runs_with_a_critic_begin_first_and_the_first_run_keeps_its_checkpoints(tmp_path, monkeypatch):
    jobs = []
    monkeypatch.setattr(Scene, "run", lambda _, some, side_by_side: jobs.extend(some))
    made = scene(tmp_path, "short")
    training.train_ppo(made)
    assert [job.name for job in jobs] == ["gae_0", "rloo_0", "rloo_1", "rloo_2"]
    kept = [training.ppo_keys(made, agent)["keep_checkpoints"] > 50 for agent in made.size.agents]
    assert kept == [True, False, False, False]
