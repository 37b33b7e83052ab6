"""`--from_trl`: the YAML of TRL's run, and docs/COMING_FROM_TRL.md, whose examples run."""

import re

import pytest
import yaml
from ppo_runs import rows
from processes import ROOT

from rlhf_dialog import main
from rlhf_dialog.commands.from_trl import DEFAULTS, RENAMED, SAME, from_trl
from rlhf_dialog.config.loading import load_config, walk
from rlhf_dialog.config.schema import Config
from rlhf_dialog.errors import UserError

PAGE = (ROOT / "docs" / "COMING_FROM_TRL.md").read_text(encoding="utf-8")
KEYS = {key for key, _ in walk(Config)}
SCRIPT = "python ppo.py --sft_model_path m --dataset_name d --total_episodes 9 --stop_token eos"


def read(given):
    text, notes = from_trl(given)
    assert [line[2:] for line in text.splitlines() if line.startswith("#")] == notes
    return yaml.safe_load(text), notes


def test_the_defaults_of_trl():
    run, notes = read(SCRIPT)
    expected = {
        "temperature": 0.7,
        "max_new_tokens": 53,
        "ppo_epoch": 4,
        "num_mini_batch": 1,
        "rollout_batch_size": 8,
        "kl_coef": 0.05,
        "kl_rate": 0.0,
        "gamma": 1.0,
        "value_loss_coef": 0.1,
        "lr": 3e-6,
        "critic_lr": 3e-6,
        "seed": 42,
        "use_linear_lr_decay": True,
        "entropy_coef": 0.0,
        "use_valuenorm": False,
    }
    assert {key: run[key] for key in expected} == expected
    assert notes == ["reward_class: missing, because there is no reward_model_path; add it"]


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        ("--reward_model_path r", {"reward_class": {"id": "RewardModel", "args": {"model": "r"}}}),
        (
            "--model_name_or_path words",
            {"model_path": "m", "env": {"args": {"tokenizer_path": "words", "data_path": "d"}}},
        ),
        ("--cliprange=0.1 --cliprange_value 0.3", {"clip_param": 0.1, "value_clip_param": 0.3}),
        ("--kl-estimator k3 --whiten_rewards", {"kl_estimator": "k3", "whiten_rewards": True}),
        ("--missing_eos_penalty 1.0 --stop_token_id 7", {"truncation_penalty": 1.0, "stop_token_ids": [7]}),
        ("--per_device_train_batch_size 4 --gradient_accumulation_steps 3", {"rollout_batch_size": 12}),
        (
            "--output_dir a/b/c --report_to wandb tensorboard",
            {"run_dir": "a/b", "experiment_name": "c", "use_wandb": True},
        ),
        ("--bf16 False", {"precision": "fp32"}),
        ("--fp16", {"precision": "fp16"}),
        ("--use_cpu --gradient_checkpointing", {"device": "cpu", "activation_checkpointing": True}),
        (
            "--use_peft --lora_r 4 --lora_target_modules q v",
            {"use_lora": True, "lora_r": 4, "lora_target_modules": ["q", "v"]},
        ),
        ("--use_peft --lora_target_modules all-linear", {"use_lora": True, "lora_target_modules": None}),
        ("--lr_scheduler_type constant --weight_decay 0.1", {"use_linear_lr_decay": False, "weight_decay": 0.1}),
        ("--total_episodes 800 --num_sample_generations 10", {"total_episodes": 800, "sample_interval": 10}),
        ("--deepspeed zero3.json --no_cuda False", {"use_deepspeed": True, "deepspeed_config": "zero3.json"}),
        ("--learning_rate 3e-6", {"lr": 3e-6, "critic_lr": 3e-6}),
        ("--bf16 1", {"precision": "bf16"}),
        ("--fp16 --bf16 False", {"precision": "fp16"}),
        ("--no_gradient_checkpointing", {"activation_checkpointing": False}),
        ("--total_episodes 800 --logging_steps 0.1 --save_steps 0.25", {"log_interval": 10, "save_interval": 25}),
        ("--push_to_hub --hub_model_id ada/polite", {"push_to_hub": "ada/polite"}),
        ("--push_to_hub --output_dir a/polite", {"push_to_hub": "polite"}),
        ("--num_total_batches 7", {"total_episodes": 9}),
    ],
)
def test_what_a_command_line_becomes(words, keys):
    run, _ = read(f"{SCRIPT} {words}")
    assert {key: run[key] for key in keys} == keys


def test_of_a_launcher_only_the_number_of_processes_counts():
    run, notes = read(f"accelerate launch --num_processes 3 --config_file zero.yaml {SCRIPT.removeprefix('python ')}")
    assert run["rollout_batch_size"] == 24
    assert [note for note in notes if note.startswith("num_processes: 3: ")]


@pytest.mark.parametrize("end", ["\\\n", "\\ \n", "\\\r\n"])
def test_lines_that_a_shell_joins(end):
    """As in the docstring of TRL's script, in single quotes."""
    run, _ = read(SCRIPT.replace(" --", f" {end}    --") + " " + end)
    assert (run, _) == read(SCRIPT)


def test_the_script_follows_the_launcher_at_once(tmp_path):
    script = SCRIPT.removeprefix("python ")
    run, _ = read(f"accelerate launch --config_file zero.yaml --num_processes 3 examples/{script} --output_dir a.py")
    assert (run["rollout_batch_size"], run["experiment_name"]) == (24, "a.py")
    file = tmp_path / "two.yaml"
    run, notes = read(f"accelerate launch --config_file {file} --mixed_precision bf16 {script}")
    assert run["rollout_batch_size"] == 8
    assert f"config_file: {file}: a file of the launcher that is not here; multiply rollout_batch_size by" in notes[-2]
    assert notes[-1].startswith("mixed_precision: bf16: an option of the launcher")
    file.write_text("num_processes: 2\n", encoding="utf-8")
    assert read(f"accelerate launch --config_file {file} {script}")[0]["rollout_batch_size"] == 16


def test_the_file_of_trl_and_its_command_line_together(tmp_path):
    (tmp_path / "trl.yaml").write_text("kl_coef: 0.5\nseed: 1\n", encoding="utf-8")
    run, _ = read(f"{SCRIPT} --config {tmp_path / 'trl.yaml'} --seed 2")
    assert (run["kl_coef"], run["seed"]) == (0.5, 2)


def test_a_token_is_not_repeated():
    token = "hf_" + "a1B2" * 9
    text, _ = from_trl(f"python ppo.py --hub_token {token} --odd {token} {SCRIPT.removeprefix('python ppo.py')}")
    assert token not in text
    assert "# hub_token: (not shown): " in text
    with pytest.raises(UserError) as caught:
        from_trl(f"ppo.py --odd {token} --seed -1")
    assert token not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "note"),
    [
        ("--report_to trackio wandb", "report_to: [trackio]: set 'use_wandb: true'"),
        ("--run_name a --output_dir b", "run_name: a: experiment_name is the name of output_dir"),
        ("--stop_token other", "stop_token: other: TRL knows 'eos' alone"),
        ("--num_total_batches 7", "num_total_batches: 7: TRL computes it from total_episodes"),
        ("--push_to_hub", "push_to_hub: true: set push_to_hub to the name of a repository"),
        ("--hub_model_id x", "hub_model_id: x: without push_to_hub nothing is uploaded"),
        ("--model_name_or_path w", "sft_model_path: TRL's default is EleutherAI/pythia-160m"),
        ("--use_peft", "lora_target_modules: TRL adapts the layers that peft chooses"),
    ],
)
def test_what_the_run_leaves_out_is_a_comment(words, note):
    script = SCRIPT.replace("--sft_model_path m ", "") if "model_name" in words else SCRIPT
    assert [one for one in read(f"{script} {words}")[1] if one.startswith(note)]


def test_what_has_no_counterpart_is_a_comment():
    _, notes = read(f"{SCRIPT} --attn_implementation sdpa --max_grad_norm 1 --dataset_config x --odd_key 5")
    assert notes[:2] == [
        "attn_implementation: sdpa: attention without padding is on by default, see 'packing'",
        "max_grad_norm: 1: TRL's PPO does not clip gradients; use_max_grad_norm: true would",
    ]
    assert notes[2].startswith("dataset_config: x: training reads the split train of 'env.args.data_path'")
    assert notes[3] == "odd_key: 5: has no counterpart here"


def test_a_key_of_several_lines_stays_in_its_comment(tmp_path):
    (tmp_path / "trl.yaml").write_text('"a\\nlr: 5": 1\n', encoding="utf-8")
    run, notes = read(str(tmp_path / "trl.yaml"))
    assert (run["lr"], notes[0]) == (3e-6, "a lr: 5: 1: has no counterpart here")


def test_the_tables_name_keys_that_exist():
    ours = {key for keys in RENAMED.values() for key in keys} | set(SAME)
    assert ours <= KEYS
    named = {name for line in PAGE.splitlines() if line.startswith("| ") for name in re.findall(r"`(\w+)", line)}
    assert {*RENAMED, *SAME, *DEFAULTS} - {"trust_remote_code", "weight_decay", *NOT_OF_PPO} <= named


NOT_OF_PPO = {"logging_steps", "num_total_batches", "save_steps", "save_total_limit", "lr_scheduler_type"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--from_trl"], "--from_trl: give a YAML file, or a command line in quotes"),
        (["--from_trl", "nowhere.yaml"], "nowhere.yaml: cannot be read"),
        (["--from_trl", f"{SCRIPT} --learning_rate fast"], "lr: found 'fast', wanted a valid number"),
        (
            ["--from_trl", f"{SCRIPT} --gradient_accumulation_steps 0"],
            "gradient_accumulation_steps: found 0, wanted a whole",
        ),
        (["--from_trl", f"{SCRIPT} 'open"], "the command line cannot be read: No closing quotation"),
        (["--from_trl", SCRIPT, "--lr", "1"], "--from_trl only prints a YAML; leave --lr out"),
    ],
)
def test_what_cannot_be_read(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("error: ")) == ("", 1)
    assert message in captured.err


@pytest.mark.whole_run
def test_the_example_of_the_page_trains(world, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    settings = next(block.split("```")[0] for block in PAGE.split("```yaml\n")[1:])
    for name, path in {"runs/quickstart_sft": world / "model", "runs/quickstart_data": world / "data"}.items():
        assert name in settings
        settings = settings.replace(name, str(path))
    settings = settings.replace("total_episodes: 512", "total_episodes: 9").replace(
        "gradient_accumulation_steps: 4", ""
    )
    settings = settings.replace("per_device_train_batch_size: 16", "per_device_train_batch_size: 8")
    (tmp_path / "ppo_config.yaml").write_text(settings, encoding="utf-8")
    assert main(["--from_trl", "ppo_config.yaml"]) == 0
    captured = capsys.readouterr()
    (tmp_path / "run.yaml").write_text(captured.out, encoding="utf-8")
    assert "attn_implementation: sdpa" in captured.err
    options = ["--reward_class", "{id: LengthMatch}", "--max_prompt_length", "60"]
    assert main(["--config", "run.yaml", *options, "--device", "cpu"]) == 0
    assert [row["episodes"] for row in rows(tmp_path / "runs" / "from_trl")] == [8, 16]
    config = load_config(tmp_path / "runs" / "from_trl" / "config.yaml")
    assert (config.kl_estimator, config.whiten_rewards, config.total_episodes) == ("k3", True, 9)
    own_loop = PAGE.split("```python\n")[1].split("```")[0]
    changes = 'reward_class={"id": "LengthMatch"}'
    assert changes in own_loop
    capsys.readouterr()
    exec(own_loop.replace(changes, f'{changes}, max_prompt_length=60, device="cpu"'), {})
    scores = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert (len(scores), float(scores[0][1])) == (3, 0.0)
    assert (tmp_path / "ppo_agent" / "model.safetensors").is_file()
