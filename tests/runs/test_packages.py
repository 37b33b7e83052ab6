"""Packages of trackers: asked for and missing is an error before anything is loaded."""

import sys

import pytest
from yaml_files import settings

from rlhf_dialog.errors import UserError
from rlhf_dialog.runs.agent import PPOAgent
from rlhf_dialog.runs.packages import check_packages
from rlhf_dialog.runs.smoke import smoke

TRACKERS = [("wandb", "use_wandb"), ("tensorboard", "use_tensorboard")]


@pytest.mark.parametrize(("package", "key"), TRACKERS)
def test_a_tracker_that_is_not_installed(package, key, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    check_packages(settings())
    with pytest.raises(UserError, match=rf"{key}: the package {package} is not installed; .*pip install {package}"):
        check_packages(settings(**{key: True}))


def test_a_tracker_that_is_switched_off_again(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    check_packages(settings(use_wandb=True, disable_wandb=True))


@pytest.mark.parametrize(("package", "key"), TRACKERS)
@pytest.mark.parametrize("start", [PPOAgent.train, smoke], ids=["train", "smoke"])
def test_nothing_is_loaded_before(package, key, start, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    for place in ("agent.load_models", "agent.read_source", "data_source.build_reward"):
        monkeypatch.setattr(f"rlhf_dialog.runs.{place}", lambda *_: pytest.fail("something was loaded"))
    agent = PPOAgent(settings(experiment_name="x", **{key: True}))
    with pytest.raises(UserError, match=f"pip install {package}"):
        start(agent)
    assert list(tmp_path.iterdir()) == []


def test_the_home_folder_in_run_dir(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert PPOAgent(settings(experiment_name="x", run_dir="~/runs")).run_folder == tmp_path / "runs" / "x"
    assert PPOAgent(settings(experiment_name="~", run_dir="runs")).run_folder.parts == ("runs", "~")
