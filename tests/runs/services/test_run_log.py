"""What a run tells its trackers, and when wandb opens and closes."""

from pathlib import Path

import pytest

from rlhf_dialog import UserError
from rlhf_dialog.runs import agent as agent_module
from tests.parts.ppo_runs import without_clocks

RUN = Path("run_results/ppo")


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


@pytest.mark.slow
def test_a_wandb_that_dies_in_a_run_leaves_the_run_alone(run, wandb, monkeypatch, capsys):
    monkeypatch.setattr(agent_module.PPOAgent, "save_agent", failing_first(wandb))
    assert run("--use_wandb", "true", "--max_iterations", "2") == 0
    assert run("--max_iterations", "2", "--experiment_name", "plain") == 0
    said = capsys.readouterr().err
    assert said.count("warning: wandb has failed and is not used any more") == 1
    assert said.count("agent saved") == 2
    assert without_clocks(RUN) == without_clocks(RUN.with_name("plain"))
    assert wandb.runs[0].steps == [1, 2]


def failing_first(wandb):
    """`save_agent` that lets wandb fail from then on; wandb is still open, because its upload comes last."""
    real = agent_module.PPOAgent.save_agent

    def save_agent(self):
        real(self)
        assert not wandb.runs[0].is_finished
        wandb.errors["finish"] = ConnectionResetError("Connection lost")

    return save_agent


@pytest.mark.slow
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
