"""The command `train`: words that train nothing, and mistakes, which end with one message and nothing written."""

import pytest
import torch
import yaml

from rlhf_dialog import Config, RewardFactory, load_config, main
from rlhf_dialog.distributed import rank_errors
from tests.parts import tiny
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


def test_help_lists_every_key_with_its_default(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["--help"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip().startswith("--")}
    nested = {
        "env": ("args.data_path", "args.tokenizer_path"),
        "reward_class": ("id", "args"),
        "vec_info_class": ("id",),
    }
    for key in Config.model_fields:
        for leaf in nested.get(key, ("",)):
            assert f"--{key}.{leaf}".rstrip(".") in lines, key
    for flag in ("help", "print_config", "debug", "overwrite", "resume"):
        assert f"--{flag}" in lines
    by_hand = {"episode_length": "128", "gamma": "0.99", "use_amp": "false", "device": "auto", "ref_model": "null"}
    for key, default in {**by_hand, "turn_separator": "auto", "model_path": "required"}.items():
        assert default in lines[f"--{key}"].split(), lines[f"--{key}"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--learnrate", "1"], ["learnrate: unknown key"]),
        (["--resume", "always"], ["--resume: found 'always'; write --resume or --resume auto"]),
        (["--resume=3"], ["--resume: found '3'"]),
        (["--resume", "--overwrite"], ["--overwrite replaces the run, --resume goes on with it; give one of them"]),
        (["--resume", "auto", "--overwrite"], ["--overwrite replaces the run, --resume goes on with it"]),
        (["--show_prompts"], ["--show_prompts: found 'true'; give the number of prompts to print"]),
        (["--show_prompts", "0"], ["--show_prompts: found '0'"]),
        (["--show_prompts", "²"], ["--show_prompts: found '²'"]),
        (["--show_prompts", "2", "--env.args.data_path", "./absent"], ["./absent", "no such file or folder"]),
        (["--show_prompts", "2", "--turn_separator", "chat_template"], ["the tokenizer has no chat template"]),
        (["--lrr", "1", "--gamma", "2", "--seed", "x"], ["3 problems", "lrr", "gamma: found 2", "seed: found 'x'"]),
        (["--lrr", "1", "--reward_class", "{id: Metteor}"], ["2 problems", "lrr", "did you mean 'Meteor'"]),
        (["--model_path", "./absent"], ["model_path", "no such folder: './absent'"]),
        (["--model_path", "nobody/absent"], ["model_path", "cannot be reached"]),
        (["--ref_model", "./absent"], ["ref_model", "./absent"]),
        (["--env.args.tokenizer_path", "nobody/absent"], ["env.args.tokenizer_path", "cannot be reached"]),
        (["--env.args.data_path", "./absent"], ["./absent", "no such file or folder"]),
        (["--env.args.data_path", "nobody/absent"], ["nobody/absent", "cannot be reached"]),
        (["--reward_class.id", "CompositReward"], ["CompositReward", "did you mean 'CompositeReward'"]),
        (["--vec_info_class.id", "NLPVecInf"], ["NLPVecInf", "did you mean 'NLPVecInfo'"]),
        (["--vec_info_class", "{id: NLPVecInfo, args: {x: 1}}"], ["vec_info_class", "NLPVecInfo", "x"]),
        (["--reward_class.args.part", "1"], ["CompositeReward", "part"]),
        (["--reward_class.args.parts.0.id", "Metteor"], ["parts[0]", "did you mean 'Meteor'"]),
        (["--reward_class.args.parts.0.weight", "heavy"], ["parts[0]", "heavy"]),
        (["--reward_class", "{id: NLPReward}"], ["intent_model"]),
        (["--reward_class", "{id: NLPReward, args: {intent_model: ./absent}}"], ["intent_model", "./absent"]),
        (["--max_prompt_length", "251"], ["251", "256 positions"]),
        (["--max_new_tokens", "200"], ["256 positions"]),
        (["--device", "cuda"], ["device: cuda", "no CUDA device"]),
        (["--device", "cuda", "--disable_cuda", "true"], ["disable_cuda"]),
        (
            ["--use_deepspeed", "true", "--deepspeed_config", "absent.json"],
            ["deepspeed_config: 'absent.json' not found"],
        ),
        (["--use_deepspeed", "true", "--use_fp16", "true"], ["fp16 weights need a GPU"]),
        (["--resume"], ["no checkpoint to resume from"]),
        (["--run_dir", "ppo.yaml"], ["run_dir", "cannot be written"]),
        (["--run_dir", "ppo.yaml/deeper"], ["run_dir", "cannot be written"]),
        (["--min_context_size", "40"], ["min_context_size"]),
        (["oops"], ["'oops'", "--key value"]),
        (["--lr.x", "1"], ["--lr.x"]),
        (["--reward_class.args", "{1: 2}"], ["reward_class"]),
    ],
    ids=lambda value: " ".join(value)[:60],
)
def test_a_mistake_ends_with_one_message_and_nothing_written(refused, monkeypatch, words, said):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    message = refused(*words)
    assert all(word in message for word in said), message


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


def test_a_missing_and_an_unknown_config(run, tmp_path, capsys):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "nlp_ppo.yaml").touch()
    assert main([]) == 2
    assert "--config is missing" in capsys.readouterr().err
    assert main(["--config", "nlp_pppo.yaml"]) == 2
    message = capsys.readouterr().err
    assert "did you mean 'nlp_ppo.yaml'" in message
    assert "the program ships" in message
    assert main(["--config", "nlp_ppo.yaml"]) == 2  # found, but empty
    assert "3 problems" in capsys.readouterr().err


def test_acts_that_do_not_match_their_turns_are_told_with_the_line(refused, world, tmp_path):
    tiny.write_data(tmp_path / "bad", 4)
    acts = tmp_path / "bad" / "train" / "dialogues_act_train.txt"
    lines = acts.read_text(encoding="utf-8").splitlines()
    lines[2] += "1 1"
    acts.write_text("\n".join(lines) + "\n", encoding="utf-8")
    message = refused("--env.args.data_path", "./bad")
    assert "dialogues_train.txt, line 3" in message
    assert "7 turns but 9 acts" in message


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
    """As for the other commands; without it the reward is unknown."""
    path = tmp_path / "mine.py"
    path.write_text(
        "from rlhf_dialog import BaseReward, RewardFactory\n\n\n"
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
