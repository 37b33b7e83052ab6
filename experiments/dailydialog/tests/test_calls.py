"""How other commands are called."""

import yaml

from experiments.dailydialog import calls, sizes
from rlhf_dialog.config.loading import shipped_folder


def test_a_supervised_training(tmp_path):
    keys = {"epochs": 2, "patience": None, "use_amp": True, "data_path": "some data"}
    job = calls.supervised("train-sft", sizes.SFT, keys, tmp_path / "sft")
    assert job.words[:5] == ["-m", "rlhf_dialog", "train-sft", "--config", str(shipped_folder("configs") / sizes.SFT)]
    given = dict(
        zip(
            job.words[5 + len(calls.RESUME_SUPERVISED) :: 2],
            job.words[6 + len(calls.RESUME_SUPERVISED) :: 2],
            strict=True,
        )
    )
    wanted = {"--epochs": "2", "--patience": "null", "--use_amp": "true", "--data_path": "some data"}
    assert given == wanted | {"--output": str(tmp_path / "sft/model")}
    assert (job.name, job.output) == ("sft", tmp_path / "sft/model")


def test_a_run_of_ppo_has_a_yaml_of_its_own(tmp_path):
    keys = {"seed": 2, "env.args.data_path": "some", "max_iterations": None, "total_time_steps": 77}
    job = calls.ppo("rloo_2", sizes.PPO, keys, tmp_path)
    tree = yaml.safe_load((tmp_path / "rloo_2.yaml").read_text())
    assert (tree["seed"], tree["env"]["args"]["data_path"], "max_iterations" in tree) == (2, "some", False)
    assert (tree["run_dir"], tree["experiment_name"]) == (str(tmp_path), "rloo_2")
    assert job.words[-2:] == ["--resume", "auto"]
    assert (job.tokens, job.output) == (77, tmp_path / "rloo_2/agent")


def test_an_audit_that_finds_a_hole_is_no_failure(tmp_path):
    job = calls.audit(tmp_path / "a.yaml", ["x", "y"], tmp_path / "lm", tmp_path, ("--max_prompts", "20"))
    assert job.codes == (0, 1)
    assert [job.words[i + 1] for i, word in enumerate(job.words) if word == "--judge"] == ["x", "y"]


def test_what_a_killed_training_left_is_removed(tmp_path):
    (tmp_path / ".model.77.partial").mkdir()
    (tmp_path / "model").mkdir()
    calls.clear_partial(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_benchmark_writes_its_speed(tmp_path):
    job = calls.benchmark("base", "bf16", tmp_path)
    assert job.words[0].endswith("scripts/benchmark.py")
    assert job.words[-2:] == ["--json", str(job.output)]
    assert "bf16" in job.words
