"""Every configuration that ships loads, and names only what ships or what another stage writes."""

import json
import re
from pathlib import Path

import pytest

import rlhf_dialog.environments
import rlhf_dialog.metrics
import rlhf_dialog.rewards  # noqa: F401  so that reward ids and arguments are checked
from rlhf_dialog.commands.dispatcher import COMMANDS
from rlhf_dialog.config.batch_plan import batch_plan
from rlhf_dialog.config.loading import load_config, load_settings
from rlhf_dialog.config.schema import Config, Settings
from rlhf_dialog.task_oriented.runs.settings import PolicyConfig
from rlhf_dialog.training.supervised.settings import IntentConfig, PreferenceConfig, RelevanceConfig, SFTConfig
from scripts import quickstart
from tests.parts.processes import ROOT
from tests.parts.schemas import faults, read_as_an_editor

CONFIGS = sorted(path for path in (ROOT / "configs").glob("*.y*ml") if not path.stem.startswith("month"))
SCHEMAS: dict[str, type[Settings]] = {  # by the name, or its first word
    "sft": SFTConfig,
    "intent": IntentConfig,
    "judge": IntentConfig,
    "preference": PreferenceConfig,
    "relevance": RelevanceConfig,
    "restaurant": PolicyConfig,
    "restaurant_human": PolicyConfig,
    "restaurant_dialogue": Config,
    "actions": PolicyConfig,
    "cambridge": PolicyConfig,
    "multiwoz": PolicyConfig,
}


def load(path: Path) -> Settings:
    """The settings of a shipped file, by the schema that its name says."""
    schema = SCHEMAS.get(path.stem, SCHEMAS.get(path.stem.split("_")[0]))
    return load_config(path) if schema in (None, Config) else load_settings(schema, path)


def test_they_load_and_trust_nobody():
    loaded = {path.name: load(path) for path in CONFIGS}
    runs = {name: settings for name, settings in loaded.items() if isinstance(settings, Config)}
    assert len(runs) > 5
    assert [name for name, run in runs.items() if batch_plan(run).num_optimizer_steps <= 0] == []
    assert [name for name, run in runs.items() if not run.experiment_name] == []
    assert [name for name, run in runs.items() if run.trust_remote_code or run.use_wandb] == []


def test_the_first_line_says_what_it_is_for():
    lines = {path.name: path.read_text(encoding="utf-8").splitlines()[0] for path in CONFIGS}
    assert {name: line for name, line in lines.items() if len(line) <= 20 or not line.startswith("#")} == {}


def schema_named_in(path: Path) -> Path:
    """The file of the comment that an editor's YAML language server reads."""
    (name,) = re.findall(r"^# yaml-language-server: \$schema=(\S+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return path.parent / str(name)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_each_fits_the_schema_of_its_class_and_a_key_that_is_misspelled_does_not(path):
    schema = json.loads(schema_named_in(path).read_text(encoding="utf-8"))
    document = read_as_an_editor(path)
    assert faults(document, schema) == []
    assert faults(document | {"experimentname": "a"}, schema) == ["experimentname: unknown"]
    assert schema["title"] == type(load(path)).__name__


def test_files_that_they_name_ship():
    folders = (ROOT, ROOT / "configs", ROOT / "ds_configs")
    texts = {path.name: path.read_text(encoding="utf-8") for path in CONFIGS}
    named = [
        (name, word) for name, text in texts.items() for word in re.findall(r"[\w./-]+\.(?:py|ya?ml|json)\b", text)
    ]
    assert [place for place in named if not any((folder / place[1]).is_file() for folder in folders)] == []


def test_the_stages_of_the_quickstart_read_what_the_others_write():
    kinds = ("sft", "intent", "preference")
    sft, intent, preference = (load(ROOT / f"configs/{kind}_quickstart.yaml") for kind in kinds)
    ppo, score = (load_config(ROOT / f"configs/quickstart{suffix}.yaml") for suffix in ("", "_score"))
    written = {str(stage.output) for stages in quickstart.ROUNDS for stage in stages}
    assert ppo.model_path == sft.output == preference.model_path  # type: ignore[attr-defined]
    assert sft.data_path == intent.data_path  # type: ignore[attr-defined]
    assert {ppo.env.args.data_path, sft.data_path, str(Path(preference.data_path).parent)} <= written  # type: ignore[attr-defined]
    for learned in (intent, preference):
        assert str(learned.output) in json.dumps(ppo.reward_class.args)  # type: ignore[attr-defined]
    assert ppo.context_size == sft.context_size == score.context_size  # type: ignore[attr-defined]
    parts = ppo.reward_class.args["parts"]
    assert score.reward_class.args["parts"] == [part for part in parts if part["id"] != "RewardModel"]
    assert ppo.turn_separator == sft.turn_separator  # type: ignore[attr-defined]
    assert ppo.max_prompt_length + ppo.max_new_tokens <= sft.n_positions  # type: ignore[attr-defined]


def test_the_quickstarts_stages_name_files_that_ship():
    for stage in (stage for stages in quickstart.ROUNDS for stage in stages):
        module, package, command = stage.command.split()[:3]
        assert (module, package) == ("-m", "rlhf_dialog")
        assert command in COMMANDS
        for path in stage.inputs:
            assert path.parts[0] == "runs" or (ROOT / path).exists(), f"'{stage.title}' reads {path}"
        config = re.search(r"--config (\S+)", stage.command)
        assert config is None or (ROOT / "configs" / config[1]).is_file()


def test_the_judge_learns_from_the_dialogues_that_the_rewards_classifier_leaves_out():
    reward, judge = (load(ROOT / f"configs/{name}_dailydialog_small.yaml").model_dump() for name in ("intent", "judge"))
    assert {key for key in reward if reward[key] != judge[key]} == {"half", "seed", "output"}
    assert {reward["half"], judge["half"]} == {"reward", "judge"}


def test_the_chat_models_run_reads_what_fetch_and_the_relevance_model_write():
    relevance = load(ROOT / "configs/relevance_chitchat.yaml").model_dump()
    ppo = load_config(ROOT / "configs/chat_smollm2.yaml")
    parts = {part["id"]: part.get("args") or {} for part in ppo.reward_class.args["parts"]}
    assert relevance["half"] == "reward"
    assert ppo.env.args.data_path == relevance["data_path"]
    assert parts["RelevanceReward"]["model"] == relevance["output"]
    assert (ppo.context_size, ppo.min_context_size) == (relevance["context_size"], relevance["min_context_size"])
    price = parts["LikelihoodPrice"]
    assert (price["model"], price["system_prompt"]) == (ppo.model_path, ppo.system_prompt)
    assert "EncoderSimilarity" not in parts  # it judges
    assert {Path(path).parent.name for path in (ppo.model_path, relevance["data_path"])} == {"fetched"}
    assert {Path(path).name for path in (ppo.model_path, relevance["data_path"])} == {"smollm2", "chitchat"}
