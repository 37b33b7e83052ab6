"""Whole runs through main() and PPOAgent: what they leave behind, how they resume, and how every mistake ends."""

import json
import math
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from rlhf_dialog import ChatAgent, PPOAgent, load_config
from rlhf_dialog.training.update import PPOUpdate
from tests.parts import tiny
from tests.parts.full_gpu import MESSAGE, fill_gpu
from tests.parts.ppo_runs import BROKEN_LINE, planned, rows, same, settings, tree, weights, without_clocks

FILES = ("config.yaml", "local_names.json", "metrics.jsonl", "ledger.jsonl", "report.html")
STANDARD = {
    *("iteration", "time_steps", "episodes", "FPS", "objective/score", "objective/kl", "objective/kl_coef"),
    *("objective/entropy", "ppo/policy_loss", "ppo/value_loss", "ppo/clip_fraction", "ppo/approx_kl"),
    *("ppo/explained_variance", "ppo/grad_norm", "response/length", "response/truncated", "time/rollout"),
    *("time/reward", "time/update"),
}


def test_data_that_changes_ends_the_run_and_names_the_file_and_a_resumed_one_goes_on(
    run, tmp_path, capsys, monkeypatch
):
    path, whole = tmp_path / "talks.jsonl", PPOUpdate.__call__
    path.write_text("".join(json.dumps({"dialog": [f"Is it {i} ?", f"No , {i} ."]}) + "\n" for i in range(40)))
    before = path.read_bytes()

    def with_one_more_line(*args):
        path.write_bytes(before + before[:30])
        return whole(*args)

    words = ("--env.args.data_path", "talks.jsonl", "--save_interval", "1")
    with monkeypatch.context() as patched:
        patched.setattr(PPOUpdate, "__call__", with_one_more_line)
        assert run(*words) == 2
    said = capsys.readouterr().err
    assert f"error: {path.name}: has changed since this program began to read it" in said
    assert "Traceback" not in said
    folder = tmp_path / "run_results" / "ppo"
    assert [row["iteration"] for row in rows(folder)] == [1]
    path.write_bytes(before)
    assert run(*words, "--resume") == 0
    assert [row["iteration"] for row in rows(folder)] == [1, 2]


def test_a_run_end_to_end(run, world, tmp_path, capsys):
    before = tree(world)
    assert run("--use_share_model", "true") == 0
    folder = tmp_path / "run_results" / "ppo"
    assert tree(world) == before
    assert {path.name for path in tmp_path.iterdir()} == {"ppo.yaml", "run_results"}
    assert {path.name for path in (tmp_path / "run_results").iterdir()} == {"ppo"}
    assert {path.name for path in folder.iterdir()} == {*FILES, "agent", "checkpoints"}
    assert (folder / "checkpoints" / "latest").read_text(encoding="utf-8").strip() == "iter_000002"
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"latest", "iter_000001", "iter_000002"}
    assert not [path for path in folder.rglob("*") if path.suffix in (".bin", ".pt", ".pth", ".pkl")]
    resolved = load_config(folder / "config.yaml")
    assert (resolved.lr, resolved.experiment_name, resolved.ref_model) == (1e-3, "ppo", None)
    found = rows(folder)
    assert [row["iteration"] for row in found] == [1, 2]
    assert [row["episodes"] for row in found] == [8, 16]
    for row in found:
        assert STANDARD | {"reward/length_match", "reward/length_match_weighted"} <= set(row)
        assert all(value is None or math.isfinite(value) for value in row.values())
        assert row["reward/length_match_weighted"] == pytest.approx(0.5 * row["reward/length_match"])
        assert row["objective/score"] == pytest.approx(row["reward/length_match_weighted"], abs=1e-6)
        assert 1 <= row["response/length"] <= 6
    tokens = [row["response/length"] * 8 for row in found]
    assert [row["time_steps"] for row in found] == pytest.approx([tokens[0], sum(tokens)])
    assert found[0]["objective/kl"] == pytest.approx(0, abs=1e-5)
    captured = capsys.readouterr()
    assert "ppo.yaml" in captured.err
    before, _, _ = captured.err.partition("run folder: ")
    config, *_, about = before.splitlines()
    assert config.startswith("config: ")
    assert "million trained parameters on cpu, about" in about
    assert " of memory; 8 responses and 4 optimizer steps an iteration" in about
    assert [line.split()[1] for line in captured.out.splitlines() if line.startswith("iteration ")] == ["1", "2"]
    assert captured.out.count("\n| ") == captured.out.count(" -> ") > 0
    agent = folder / "agent"
    assert not same(weights(agent), weights(world / "model"))
    assert AutoTokenizer.from_pretrained(agent)("a <EOU>")["input_ids"] == tiny.byte_tokenizer()("a <EOU>")["input_ids"]
    beside = json.loads((agent / "rlhf_dialog.json").read_text(encoding="utf-8"))
    assert (beside["format_version"], beside["turn_separator"], beside["max_new_tokens"]) == (1, "<EOU>", 6)
    assert (agent / "value_head.safetensors").is_file()
    assert isinstance(ChatAgent.load(agent).chat("Hello", history=["Good morning", "Good morning"]), str)


@pytest.mark.parametrize(
    "words",
    [
        "--use_share_model true --top_k 12",
        "--advantage_estimator grpo --turn_separator '\\n##' --pytorch_threads 1 --local_rank=0",
        "--advantage_estimator rloo --num_responses_per_prompt 2",
        "--advantage_estimator reinforce_pp --num_responses_per_prompt 1",
        pytest.param(
            "--use_amp true --top_p 0.8 --temperature 0.7 --drop_overlap true --min_context_size 2 --context_size 3 "
            "--use_gae false --use_adv_normalize false --dual_clip_ppo true --use_linear_lr_decay true",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "--use_valuenorm false --use_huber_loss false --use_clipped_value_loss false --use_max_grad_norm false "
            "--per_device_microbatch_size 3 --rollout_batch_size 7 --num_mini_batch 3 "
            "--reward_class '{id: NLPReward, args: {intent_coef: 0, kl_coef: 0.3, meteor_wordnet: off}}'",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_each_estimator_and_other_options_run(run, tmp_path, words):
    reward = [] if "--reward_class" in words else ["--reward_class", "{id: Vowels}"]
    assert run(*shlex.split(words), *reward) == 0
    found = rows(tmp_path / "run_results" / "ppo")
    assert len(found) == 2
    assert all(math.isfinite(row["objective/kl"]) for row in found)
    assert (found[0]["ppo/value_loss"] is None) == ("--advantage_estimator" in words)
    assert ("objective/kl_full" in found[0]) == ("--top_" in words)
    assert found[0]["objective/kl_coef"] == (0.3 if "kl_coef: 0.3" in words else 0.2)


@pytest.mark.slow
def test_the_seed_decides_the_run(run, tmp_path):
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        assert run("--max_iterations", "1", "--experiment_name", name, "--seed", seed) == 0
    first, again, other = (without_clocks(tmp_path / "run_results" / name) for name in "abc")
    assert first == again != other


def test_arguments_of_train_replace_keys(world, tmp_path):
    keys = {**settings(world), "run_dir": str(tmp_path), "experiment_name": "short", "total_time_steps": 10**6}
    del keys["max_iterations"]
    PPOAgent.from_config(keys).train(total_time_steps=1)
    assert len(rows(tmp_path / "short")) == 1


@pytest.mark.slow
def test_a_model_and_data_that_moved_are_the_same(run, world, tmp_path, caplog):
    assert run() == 0
    for name in ("model", "data"):
        shutil.copytree(world / name, tmp_path / f"moved_{name}")
    words = ["--model_path", "./moved_model", "--env.args.data_path", "./moved_data", "--max_iterations", "3"]
    assert run("--resume", *words, "--lr", "1e-4", "--per_device_microbatch_size", "2") == 0
    assert run("--resume", *words, "--seed", "4") == 2
    tiny.gpt2(seed=5).save_pretrained(tmp_path / "moved_model")
    assert run("--resume", *words) == 2  # another model of the same kind and size
    assert "resumed with changed settings: lr 0.001 -> 0.0001" in caplog.messages
    state = json.loads((tmp_path / "run_results/ppo/checkpoints/iter_000003/trainer.json").read_text(encoding="utf-8"))
    assert len(state["identity_sha256"]) == 64
    assert state["settings"]["lr"] == 1e-4


@pytest.mark.slow
def test_weights_only_begins_a_run_of_its_own(run, tmp_path, caplog):
    assert run("--max_iterations", "3") == 0
    old = tmp_path / "run_results" / "ppo"
    before = {path: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    words = ["--experiment_name", "new", "--seed", "3", "--max_iterations", "2"]
    assert run(*words, "--resume_weights_only", "run_results/ppo") == 0
    assert "weights of run_results/ppo/checkpoints/iter_000003; newly initialised: the optimizer" in caplog.text
    assert "differences from that run: seed: 3 here, 0 in the checkpoint" in caplog.text
    new = tmp_path / "run_results" / "new"
    found = rows(new)
    assert [row["iteration"] for row in found] == [1, 2]
    assert abs(found[0]["objective/kl"]) > 1e-5  # the reference is still the model before any training
    assert found[0]["objective/kl_coef"] == 0.2
    assert {path: path.read_bytes() for path in old.rglob("*") if path.is_file()} == before
    run_to = ["--experiment_name", "more", "--seed", "3", "--max_iterations"]
    assert run(*run_to, "1", "--save_interval", "9", "--resume_weights_only", "run_results/ppo") == 0
    more = tmp_path / "run_results" / "more"
    (more / "checkpoints" / "latest").write_text("iter_000000", encoding="utf-8")  # as if it had been killed at once
    assert run(*run_to, "2", "--resume") == 0
    assert without_clocks(more) == without_clocks(new)


@pytest.mark.slow
def test_a_run_is_replaced_only_by_a_run_without_mistakes(run, refused, tmp_path, monkeypatch, capsys):
    assert run("--max_iterations", "3", "--use_tensorboard", "true") == 0
    folder = tmp_path / "run_results" / "ppo"
    (folder / "notes.txt").write_text("mine", encoding="utf-8")

    def times():
        return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}

    before = times()
    message = refused("--max_iterations", "1")
    assert all(word in message for word in ("--overwrite", "--resume", "--experiment_name", "run_results/ppo"))
    refused("--overwrite", "--env.args.data_path", "./absent")
    refused("--overwrite", "--max_prompt_length", "255")
    assert run("--overwrite", "--smoke") == 0  # it replaces nothing
    assert times() == before
    assert run("--overwrite", "--max_iterations", "1") == 0
    assert [row["iteration"] for row in rows(folder)] == [1]
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"iter_000001", "latest"}
    assert load_config(folder / "config.yaml").max_iterations == 1
    assert {path.name for path in folder.iterdir()} == {*FILES, "agent", "checkpoints", "notes.txt"}


def without_evaluation(folder: Path) -> list[dict]:
    return [{key: value for key, value in row.items() if not key.startswith("eval/")} for row in without_clocks(folder)]


@pytest.mark.slow
def test_the_validation_split_is_measured_at_its_intervals_and_once_at_the_end(run, world, tmp_path, capsys):
    words = ["--eval_interval", "2", "--max_iterations", "5", "--eval_episodes", "4", "--log_interval", "3"]
    assert run(*words, *planned(0.25, 0.75, 0.5)) == 0
    found = rows(tmp_path / "run_results" / "ppo")
    assert [row.get("eval/score") for row in found] == [None, 0.25, None, 0.75, 0.5]
    assert ["time/eval" in row for row in found] == [False, True, False, True, True]
    seen = sys.modules["my_rewards"].Planned.seen
    assert [len(dialogues) for dialogues in seen] == [2, 4, 4, 4]
    validation = (world / "data/validation/dialogues_validation.txt").read_text(encoding="utf-8")
    assert all(f"{d.prompt_turns[-1]} __eou__ {d.reference} __eou__" in validation for batch in seen for d in batch)
    prompts = [[d.prompt_turns for d in batch] for batch in seen]
    assert prompts[1] == prompts[2] == prompts[3]
    words = [len(d.response.split()) for d in seen[2]]
    assert found[3]["eval/mean_words"] == pytest.approx(sum(words) / 4)
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("evaluation of")]
    assert [line[:6] for line in lines] == [
        ["evaluation", "of", "iteration", n, "score", value]
        for n, value in (("2", "0.250"), ("4", "0.750"), ("5", "0.500"))
    ]


@pytest.mark.slow
def test_evaluation_does_not_disturb_the_training(run, tmp_path):
    moody = ["--reward_class", "{id: Moody}"]
    assert run(*moody, "--experiment_name", "without") == 0
    assert run(*moody, "--experiment_name", "with", "--eval_interval", "1", "--eval_episodes", "5") == 0
    runs = tmp_path / "run_results"
    assert all("eval/score" in row for row in rows(runs / "with"))
    assert without_evaluation(runs / "with") == without_clocks(runs / "without")
    assert same(weights(runs / "with" / "agent"), weights(runs / "without" / "agent"))


@pytest.mark.slow
def test_the_best_iteration_stays_as_a_checkpoint_and_as_an_agent(run, tmp_path, caplog):
    words = ["--eval_interval", "1", "--eval_episodes", "2", "--keep_checkpoints", "1", "--save_interval", "9"]
    assert run(*words, *planned(0.1, 0.9, 0.3, 0.9), "--max_iterations", "4") == 0
    assert "best eval/score: 0.9000 after iteration 2" in caplog.text
    assert run("--experiment_name", "two", *planned(0), "--max_iterations", "2") == 0
    folder, two = tmp_path / "run_results" / "ppo", tmp_path / "run_results" / "two"
    checkpoints = folder / "checkpoints"
    assert {path.name for path in checkpoints.iterdir()} == {"latest", "iter_000002", "iter_000004"}
    assert (checkpoints / "latest").read_text(encoding="utf-8") == "iter_000004"
    assert same(weights(folder / "best_agent"), weights(two / "agent"))
    assert not same(weights(folder / "agent"), weights(two / "agent"))
    assert tree(folder / "best_agent") == tree(folder / "agent")
    assert isinstance(ChatAgent.load(folder / "best_agent").chat("Hello"), str)


@pytest.mark.slow
def test_a_full_gpu_ends_with_code_3_and_the_size_that_fits_is_kept(run, tmp_path, monkeypatch, capsys):
    losses, whole = PPOUpdate.losses, tmp_path / "run_results/whole"

    def full(self, microbatch, *args):
        if self.iteration == 2 or len(microbatch.tokens) == 2:
            raise torch.OutOfMemoryError(MESSAGE)
        return losses(self, microbatch, *args)

    keys = ["--save_interval", "1", "--ppo_epoch", "1", "--per_device_microbatch_size", "2"]
    monkeypatch.setattr(PPOUpdate, "losses", full)
    assert run(*keys) == 3
    error = capsys.readouterr().err
    assert error.count("update: no GPU memory for 2 rows at a time (2.50 GiB asked for, 1.25 GiB free)") == 1
    (line,) = [line for line in error.splitlines() if line.startswith("error: ")]
    assert "what helps: use_share_model: true; activation_checkpointing: true; use_lora: true; " in line
    assert "iter_000001" in line
    monkeypatch.setattr(PPOUpdate, "losses", losses)
    watch = fill_gpu(monkeypatch, PPOUpdate, "losses", ())
    assert run(*keys, "--resume") == 0
    assert "rows at a time for which a GPU has memory: {'update': 1}" in capsys.readouterr().err
    resumed = len(watch)
    assert run("--ppo_epoch", "1", "--per_device_microbatch_size", "1", "--experiment_name", "whole") == 0
    names = ("time_steps", "objective/kl", "ppo/policy_loss", "ppo/value_loss", "ppo/grad_norm")
    numbers = [[row[name] for row in rows(folder) for name in names] for folder in (whole.with_name("ppo"), whole)]
    assert numbers[0] == pytest.approx(numbers[1], abs=1e-5)
    assert 2 * resumed == len(watch) - resumed


@pytest.mark.slow
def test_smoke_passes_every_stage_meets_the_same_mistakes_and_leaves_nothing(run, refused, tmp_path, capsys, caplog):
    words = ["--eval_interval", "3", "--num_responses_per_prompt", "2", "--rollout_batch_size", "40"]
    assert run("--smoke", *words, "--max_iterations", "100", "--use_tensorboard", "true") == 0
    assert {path.name for path in tmp_path.iterdir()} == {"ppo.yaml"}
    out = capsys.readouterr().out
    assert "iteration 1 " in out
    assert "iteration 2 " not in out
    assert "evaluation of iteration 1 " in out
    assert "4 responses" in caplog.text
    refused("--smoke", "--env.args.data_path", "./absent")
    refused("--smoke", "--reward_class", "{id: Broken, args: {at: 1}}")


@pytest.mark.slow
def test_a_reward_that_raises_or_cannot_be_built_names_its_line_and_leaves_the_traceback(run, tmp_path, capsys):
    folder = tmp_path / "run_results" / "ppo"

    def failed(reward):
        assert run("--reward_class", reward) == 2
        captured = capsys.readouterr()
        assert "Traceback" not in captured.out + captured.err
        assert captured.err.count("error: ") == 1
        return captured.err, (folder / "error.log").read_text(encoding="utf-8")

    message, log = failed("{id: Unbuildable}")
    assert all(word in message for word in ("Unbuildable", "FileNotFoundError", "words.txt", "my_rewards.py:"))
    assert [path.name for path in folder.iterdir()] == ["error.log"]
    assert 'raise FileNotFoundError("words.txt")' in log
    message, log = failed("{id: Broken, args: {at: 2}}")  # the folder was still free
    assert "reward 'broken' raised KeyError: 'politeness'" in message
    assert f"my_rewards.py:{BROKEN_LINE}" in message
    assert f'my_rewards.py", line {BROKEN_LINE}, in deeper' in log
    assert not (folder / "agent").exists()
    assert [row["iteration"] for row in rows(folder)] == [1]
