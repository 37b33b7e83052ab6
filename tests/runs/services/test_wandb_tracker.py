"""wandb: one run for one training, offline where there is no connection, and never the end of a run."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from rlhf_dialog import UserError
from rlhf_dialog.errors import SignalExit
from rlhf_dialog.runs import agent as agent_module
from rlhf_dialog.runs.services.wandb_tracker import RUN_ID, open_wandb
from tests.parts.trainers import settings


def config(**keys):
    return settings(**{"use_wandb": True, "experiment_name": "first"} | keys)


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_it_opens_online_with_a_limit_of_20_seconds(wandb, tmp_path, caplog):
    tracker = open_wandb(config(wandb_project="p", wandb_entity="team"), tmp_path)
    (asked,) = wandb.asked
    assert (asked["project"], asked["entity"], asked["name"], asked["mode"]) == ("p", "team", "first", None)
    assert (asked["settings"].init_timeout, asked["resume"], asked["dir"]) == (20, "allow", str(tmp_path))
    tracker.log(3, {"a": 1.0})
    tracker.close()
    assert (wandb.runs[0].steps, wandb.runs[0].is_finished) == ([3], True)
    assert warnings_of(caplog) == []
    for keys in ({"disable_wandb": True}, {"use_wandb": False}):
        assert open_wandb(config(**keys), tmp_path) is None
    assert len(wandb.runs) == 1


@pytest.mark.parametrize(
    "error", [TimeoutError("no answer in 20 s"), ValueError("API key must be 40 characters."), SystemExit(1)]
)
def test_it_goes_offline_where_it_cannot_be_opened_online(wandb, tmp_path, caplog, error):
    wandb.errors["online"] = error
    tracker = open_wandb(config(), tmp_path)
    assert [asked["mode"] for asked in wandb.asked] == [None, "offline"]
    assert wandb.torn_down == 1  # else wandb refuses the id, which it calls in use
    assert wandb.asked[0]["id"] == wandb.asked[1]["id"] == tracker.id
    (said,) = warnings_of(caplog)
    assert f"{type(error).__name__}: {str(error).removesuffix('.')}. The run" in said
    assert said.endswith(f"upload it later: wandb sync {tracker.files}")
    assert "The run goes on" in said


def test_what_fails_offline_too_is_not_used(wandb, tmp_path, caplog):
    wandb.errors = {"online": ValueError("Invalid project name"), "offline": ValueError("Invalid project name 'a/b'")}
    assert open_wandb(config(), tmp_path) is None
    assert warnings_of(caplog) == [
        "wandb cannot be used: ValueError: Invalid project name 'a/b'. The run goes on without it"
    ]


@pytest.mark.parametrize("end", [SystemExit(1), SignalExit(143)])
def test_an_exit_of_wandb_is_not_the_runs_and_a_signal_passes(wandb, tmp_path, caplog, end):
    wandb.errors = {"online": end, "offline": end}
    with pytest.raises(SignalExit) if isinstance(end, SignalExit) else nullcontext():
        assert open_wandb(config(), tmp_path) is None
    assert ["SystemExit: 1" in text for text in warnings_of(caplog)] == [True] * (type(end) is SystemExit)


def test_without_a_key_it_is_offline(wandb, tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO", "rlhf_dialog")
    monkeypatch.delenv("WANDB_API_KEY")
    open_wandb(config(), tmp_path).log(3, {"a": 1.0})
    assert (wandb.asked[0]["mode"], wandb.asked[0]["resume"], wandb.runs[0].steps) == ("offline", None, [3])
    assert "no key found" in caplog.text
    assert warnings_of(caplog) == []


def test_one_training_is_one_run_of_wandb(wandb, tmp_path, monkeypatch):
    first = open_wandb(config(), tmp_path)
    assert not (tmp_path / RUN_ID).exists()  # another run may still be there, to be overwritten
    first.remember()
    again = open_wandb(config(), tmp_path, resume=True)
    other = open_wandb(config(), tmp_path, resume=False)
    assert first.id == again.id != other.id
    assert [asked["id"] for asked in wandb.asked] == [first.id, first.id, other.id]
    other.remember()
    assert open_wandb(config(), tmp_path, resume=True).id == other.id
    monkeypatch.setenv("WANDB_RUN_ID", "sweep1")
    assert open_wandb(config(), tmp_path, resume=True).id == "sweep1"


def test_variables_of_wandb_count(wandb, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "200")
    open_wandb(config(), tmp_path)
    assert not hasattr(wandb.asked[0]["settings"], "init_timeout")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    open_wandb(config(), tmp_path)
    assert [asked["mode"] for asked in wandb.asked] == [None, "disabled"]


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
