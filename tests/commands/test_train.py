"""The command `train`: words that train nothing, and mistakes, which end with one message and nothing written."""

import pytest
import yaml

from rlhf_dialog import RewardFactory, load_config
from rlhf_dialog.distributed import rank_errors
from tests.parts.processes import ROOT, run_python


def test_print_config_prints_yaml_that_loads_and_loads_no_model(run, tmp_path, monkeypatch, capsys):
    for place in ("agent.load_models", "agent.read_source", "agent.build_reward"):
        monkeypatch.setattr(f"rlhf_dialog.runs.{place}", lambda *_: pytest.fail("something was loaded"))
    assert run("--print_config", "--lr", "3e-5", "--env.args.tokenizer_path", "words") == 0
    printed = capsys.readouterr().out
    path = tmp_path / "printed.yaml"
    path.write_text(printed, encoding="utf-8")
    config = load_config(path)
    assert (config.lr, config.env.args.tokenizer_path, config.gamma) == (3e-5, "words", 0.99)
    assert yaml.safe_load(printed)["experiment_name"] == "ppo"
    assert {path.name for path in tmp_path.iterdir()} == {"ppo.yaml", "printed.yaml"}


def test_show_prompts_prints_them_and_loads_and_writes_nothing(run, tmp_path, monkeypatch, capsys):
    for place in ("agent.load_models", "agent.build_reward"):
        monkeypatch.setattr(f"rlhf_dialog.runs.{place}", lambda *_: pytest.fail("something was loaded"))
    assert run("--show_prompts", "2") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines if line.startswith("prompt ")] == ["prompt 1", "prompt 2"]
    assert sum("<EOU>" in line for line in lines if line.startswith("  |")) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"ppo.yaml"}
    monkeypatch.setenv("RANK", "1")
    assert run("--show_prompts", "2") == 0
    assert capsys.readouterr().out == ""


def test_a_smoke_test_trains_nothing_else(run, monkeypatch, caplog):
    tried = []
    monkeypatch.setattr("rlhf_dialog.runs.smoke.smoke", tried.append)
    monkeypatch.setattr("rlhf_dialog.runs.agent.PPOAgent.train", lambda _: pytest.fail("it trains"))
    assert run("--smoke") == 0
    assert [str(agent.run_folder) for agent in tried] == ["run_results/ppo"]


def test_a_mistake_that_every_process_makes_is_told_by_rank_0_and_by_another_only_when_rank_0_is_silent(
    run, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(rank_errors, "REPORT_TIMEOUT", 0.2)
    monkeypatch.setenv("WORLD_SIZE", "2")  # without the place to meet that a launcher gives
    said = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        assert run("--local_rank=" + rank) == 2
        said.append(capsys.readouterr())
    assert "2 processes, but MASTER_ADDR, MASTER_PORT is not set" in said[0].err
    assert said[0].err.count("error: ") == 1
    assert said[1].err == "rank 1: " + said[0].err[said[0].err.index("error: ") :]
    assert run("--help") == 0
    assert capsys.readouterr() == ("", "")
    assert {path.name for path in tmp_path.iterdir()} == {"ppo.yaml"}


@pytest.mark.slow
def test_the_script_itself_ends_with_the_exit_code(tmp_path):
    ran = run_python(ROOT / "train_ppo.py", "--config", "absent.yaml", cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("error: config file 'absent.yaml' not found")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_bug_leaves_its_traceback_in_the_run_folder(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("rlhf_dialog.runs.services.trackers.TrackerService.after_iteration", lambda *_: 1 / 0)
    assert run() == 70
    path = tmp_path / "run_results" / "ppo" / "error.log"
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"internal error, please report: ZeroDivisionError: division by zero; the traceback is in {path}"
    assert "Traceback" in path.read_text(encoding="utf-8")
    assert not (tmp_path / "rlhf_dialog_error.log").exists()


def test_a_file_that_registers_classes_is_run_first(run, tmp_path, monkeypatch, capsys):
    path = tmp_path / "mine.py"
    path.write_text(
        "from rlhf_dialog import BaseReward, RewardFactory\n\nassert __name__ != '__main__'\n\n"
        "class OfMine(BaseReward):\n    def __call__(self, dialogues):\n        return [0.0 for _ in dialogues]\n\n\n"
        'RewardFactory.register("OfMine", OfMine)\n',
        encoding="utf-8",
    )
    monkeypatch.setattr(RewardFactory, "classes", dict(RewardFactory.classes))
    own = ["--reward_class", "{id: OfMine}", "--print_config"]
    assert run(*own) == 2
    assert "OfMine" in capsys.readouterr().err
    assert run(*own, "--register", str(path)) == 0
    assert "id: OfMine" in capsys.readouterr().out
    assert run(*own, "--register", str(tmp_path / "absent.py")) == 2
    assert "absent.py: is not a regular file; name a Python file" in capsys.readouterr().err
