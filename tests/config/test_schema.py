"""Keys of the configuration: defaults, bounds, readings of YAML, names, the JSON schema and what is stored."""

import json
import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import Field, ValidationError

from rlhf_dialog import main
from rlhf_dialog.commands.export import ExportOptions, _read_config
from rlhf_dialog.config.checks import folder_name, repository_name
from rlhf_dialog.config.loading import dump_yaml, load_config, replace_keys
from rlhf_dialog.config.schema import Config, PPOKeys, RewardKeys
from rlhf_dialog.config.settings import CountOrAuto, DataKeys, Settings, schema_text
from rlhf_dialog.config.synonyms import NO_EFFECT
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.untrusted import read_run_config
from rlhf_dialog.runs.publish import run_of
from rlhf_dialog.runs.run_reader import read_run
from tests.parts.processes import ROOT
from tests.parts.schemas import faults
from tests.parts.trainers import settings
from tests.parts.yaml_files import SMALL, message


def test_the_defaults_are_the_documents(write):
    config = load_config(write(SMALL))
    assert (config.episode_length, config.env_num, config.num_mini_batch, config.ppo_epoch) == (128, 5, 20, 5)
    assert (config.lr, config.critic_lr, config.total_time_steps) == (1e-6, 1e-6, 100_000)
    assert (config.kl_coef, config.kl_target, config.kl_rate, config.kl_clip) == (0.2, 0.05, 0.1, 0.2)
    assert (config.save_interval, config.log_interval, config.run_dir) == ("auto", 1, "./run_results")
    assert (config.context_size, config.min_context_size, config.turn_separator) == (5, 1, "auto")
    assert (config.opti_eps, config.trust_remote_code, config.ref_model) == (1e-5, False, None)
    assert config.vec_info_class.id == "NLPVecInfo"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("", 1),
        ("advantage_estimator: grpo", 4),
        ("advantage_estimator: rloo\nnum_responses_per_prompt: null", 4),
        ("advantage_estimator: reinforce_pp\nnum_responses_per_prompt: ~", 1),
        ("num_responses_per_prompt: 3", 3),
        ("advantage_estimator: rloo\nnum_responses_per_prompt: 2", 2),
    ],
)
def test_the_responses_per_prompt_are_a_number_once_loaded_and_saved(write, text, number):
    config = load_config(write(SMALL + text + "\n"))
    assert config.num_responses_per_prompt == number
    saved = dump_yaml(config)
    assert yaml.safe_load(saved)["num_responses_per_prompt"] == number
    assert load_config(write(saved)) == config


def test_replaced_keys_take_along_what_nobody_set(write):
    plain, chosen = load_config(write(SMALL)), load_config(write(SMALL + "num_responses_per_prompt: 2\n"))
    assert replace_keys(plain, {"seed": 3}).model_dump() == plain.model_dump() | {"seed": 3}
    assert replace_keys(plain, {"advantage_estimator": "grpo"}).num_responses_per_prompt == 4
    assert replace_keys(chosen, {"advantage_estimator": "grpo"}).num_responses_per_prompt == 2
    assert (
        replace_keys(replace_keys(chosen, {"seed": 3}), {"advantage_estimator": "grpo"}).num_responses_per_prompt == 2
    )
    assert replace_keys(chosen, {"num_responses_per_prompt": None}).num_responses_per_prompt == 1
    with pytest.raises(UserError, match="found 1"):
        replace_keys(plain, {"num_responses_per_prompt": 1, "advantage_estimator": "rloo"})


def test_every_number_of_ppo_and_the_reward_but_the_learning_rates_has_an_upper_bound():
    numbers = [
        (name, field)
        for keys in (PPOKeys, RewardKeys)
        for name, field in keys.model_fields.items()
        if field.annotation in (float, float | None)
    ]
    unbounded = {name for name, field in numbers if not any(hasattr(limit, "le") for limit in field.metadata)}
    assert len(numbers) > 15
    assert unbounded == {"lr", "critic_lr"}  # a rate that is far too high stops the run by itself


class Small(Settings):
    number: int = Field(1, description="a whole number")
    size: CountOrAuto = Field("auto", description="a whole number, or auto")
    share: float = Field(0.5, description="a share")
    name: str = Field("a", description="a name")


def test_values_as_yaml_reads_them():
    assert (Small(number="1e3").number, Small(share="1e-6").share, Small(name=5).name) == (1000, 1e-6, "5")
    assert (Small(size="1e3").size, Small(size="auto").size) == (1000, "auto")
    assert DataKeys(reply_roles=[" Waiter", "cook"]).reply_roles == ["waiter", "cook"]
    assert DataKeys(date_string=date(2026, 7, 26)).date_string == DataKeys(date_string="2026-07-26").date_string
    with pytest.raises(ValidationError, match="a day such as 2026-07-26"):
        DataKeys(date_string="tomorrow")


@pytest.mark.parametrize("keys", [{"number": True}, {"share": False}, {"share": float("nan")}, {"x": 1}])
def test_values_that_are_refused(keys):
    with pytest.raises(ValidationError):
        Small(**keys)


STORED = ROOT / "tests/parts/every_key/config.yaml"


@pytest.fixture
def run_folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("run", "model", "data"):
        (tmp_path / name).mkdir()
    (tmp_path / "run/config.yaml").write_bytes(STORED.read_bytes())
    (tmp_path / "run/metrics.jsonl").write_text(json.dumps({"iteration": 1}) + "\n")
    return tmp_path / "run"


def test_training_reads_it_and_says_what_has_no_effect(run_folder, capsys, caplog):
    caplog.set_level("INFO")
    keys = yaml.safe_load(STORED.read_text())
    assert main(["--config", str(run_folder / "config.yaml"), "--resume", "--print_config"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    deleted = set(keys) & set(NO_EFFECT)
    assert set(keys) - deleted <= set(printed)
    changed = {key for key in set(keys) - deleted if printed[key] != keys[key]}
    assert changed == {"env", "ledger_texts"}
    assert printed["env"]["args"] == keys["env"]["args"] | {"columns": {}, "split": {}}
    assert printed["ledger_texts"] == "all"  # true
    lines = [one.getMessage() for one in caplog.records]
    assert sum("has no effect here" in line for line in lines) == len(deleted)


@pytest.mark.parametrize("judge", ["", ", judge: null", ", judge: {id: LengthMatch}"])
def test_a_guard_without_a_judge_is_off(write, caplog, judge):
    caplog.set_level("INFO")
    config = load_config(write(f"{SMALL}eval_interval: 1\nguard: {{action: stop{judge}}}\n"))
    assert (config.guard is not None) == ("id" in judge) == ("guard.judge" not in caplog.text)


def test_what_is_stored_of_it_is_read_again_by_every_command(run_folder, tmp_path):
    config = load_config(run_folder / "config.yaml")
    (tmp_path / "again.yaml").write_text(dump_yaml(config))
    assert load_config(tmp_path / "again.yaml").model_dump() == config.model_dump()
    options = ExportOptions(run=run_folder, output="out", trust_config=True)
    assert _read_config(run_folder / "config.yaml", options).seed == 1
    for trust in (True, False):
        assert read_run_config(None, run_folder / "config.yaml", trust).config.seed == 1
    assert read_run_config(run_folder / "config.yaml", Path("none")).config.seed == 1
    assert read_run(run_folder).config["seed"] == run_of(run_folder / "agent").config["seed"] == 1


BASE: dict[str, Any] = {"model_path": "m", "env": {"args": {"data_path": "d"}}, "reward_class": {"id": "LengthMatch"}}


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"num_responses_per_prompt": None},
        {"advantage_estimator": "rloo"},
        {"reward_class": {"id": "Mine", "args": {"anything": [1, {"a": None}]}}},
        {"reward_class": {"id": "LengthMatch", "args": None}},
        {"kl_coef_max": None, "stop_token_ids": [1, 2]},
    ],
)
def test_what_the_yaml_accepts_the_schema_accepts(keys, tmp_path, monkeypatch):
    monkeypatch.setattr("rlhf_dialog.config.registry.RewardFactory.classes", {})  # ids are not looked up
    path = tmp_path / "a.yaml"
    path.write_text("", encoding="utf-8")
    load_config(path, BASE | keys)
    assert faults(BASE | keys, json.loads(schema_text(Config))) == []


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"lrr": 1}, "lrr: unknown"),
        ({"lr": 0}, "lr: exclusiveMinimum"),
        ({"lr": "fast"}, "lr: not number"),
        ({"seed": True}, "seed: not integer"),
        ({"advantage_estimator": "rlooo"}, "advantage_estimator: not one of"),
        ({"reward_class": {"name": "x"}}, "reward_class.name: unknown"),
        ({"env": {"args": {"path": "x"}}}, "env.args.path: unknown"),
    ],
)
def test_what_it_refuses_the_command_refuses(keys, fault, tmp_path):
    (said,) = faults(BASE | keys, json.loads(schema_text(Config)))
    assert said.startswith(fault)
    path = tmp_path / "a.yaml"
    path.write_text("", encoding="utf-8")
    with pytest.raises(UserError, match=r"\d problems?"):
        load_config(path, BASE | keys)


NAMES = [*("a", "first try", "v1.2", "été-你好", "x" * 201, "a..b", "~", None)]


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", ".x", "a/b", "a\\b", "x" * 202, "你" * 80, "a\x1b[2J", "a\n", "a\tb", "\x00"),
        *("\u202egpj", "\udc80"),
    ],
)
def test_what_cannot_be_the_name_of_a_folder(name):
    with pytest.raises(ValueError, match="the name of a folder"):
        folder_name(name)
    assert [folder_name(good) for good in NAMES] == NAMES


@pytest.mark.parametrize("name", ["", "a/b/c", "a--b", "a..b", "a.", "a b", "x" * 97, "a.git", "é", "a\x1b"])
def test_names_of_repositories(name, write):
    assert "push_to_hub: found " in message(write(SMALL), {"push_to_hub": name})
    for good in ("polite", "ada/polite", "A.b_c-d/1", "x" * 96, None):
        assert repository_name(good) == good


def test_a_separate_critic_and_the_head_of_a_shared_model_learn_alone():
    shared = {"use_share_model": True}
    for allowed in ({}, shared, {**shared, "use_lora": True}, {**shared, "use_fsdp": True}):
        assert Config(**BASE, **allowed, critic_warmup=3).critic_warmup == 3


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        ({}, "auto"),
        ({"amp_dtype": "fp16"}, "auto"),
        ({"precision": "bf16"}, "bf16"),
        ({"precision": "fp32"}, "fp32"),
        ({"use_amp": False}, "fp32"),
        ({"use_amp": False, "amp_dtype": "fp16"}, "fp32"),
        ({"use_amp": True}, "bf16"),
        ({"use_amp": True, "amp_dtype": "fp16"}, "fp16"),
        ({"use_amp": True, "precision": "fp16"}, "fp16"),
        ({"use_amp": True, "amp_dtype": "bf16", "precision": "bf16"}, "bf16"),
        ({"use_amp": False, "amp_dtype": "fp16", "precision": "fp32"}, "fp32"),
        ({"use_amp": None, "precision": "auto"}, "auto"),  # as a run folder's config.yaml has it
    ],
)
def test_what_the_keys_ask_for(keys, wanted):
    config = settings(**keys)
    assert config.asked_precision == wanted
    assert config.uses_fp16 == (wanted == "fp16")


@pytest.mark.parametrize("end", ["total_episodes: 9", "total_time_steps: 500", "max_iterations: 7"])
@pytest.mark.parametrize("key", ["max_iterations", "total_episodes", "total_time_steps"])
def test_an_end_of_the_command_line_replaces_that_of_the_file(write, end, key):
    config = load_config(write(f"{SMALL}{end}\n"), {key: 2})
    ends = {"max_iterations": None, "total_episodes": None, "total_time_steps": 100_000}
    assert {name: getattr(config, name) for name in ends} == ends | {key: 2}
    assert load_config(write(dump_yaml(config))) == config


def test_each_recipe_of_the_documents_is_a_configuration():
    page = (ROOT / "docs/RUNS.md").read_text(encoding="utf-8").partition("## Recipes\n")[2].partition("\n## ")[0]
    rows = [line for line in page.splitlines() if line.startswith("| ") and "arxiv" in line]
    assert len(rows) == 8
    needed = {"model_path": "m", "env": {"args": {"data_path": "d"}}, "reward_class": {"id": "LengthMatch"}}
    for row in rows:
        keys = dict(re.findall(r"`(\w+): (\S+)`", row.replace(": K`", ": 3`")))
        read = {key: yaml.safe_load(value) for key, value in keys.items()}
        config = Config(**needed, **read)
        assert len(keys) == row.count("`") / 2 - row.count("`max_new_tokens`")
        assert all(getattr(config, key) == float(v) if v[0].isdigit() else True for key, v in keys.items()), row
