"""evaluate_policy with language models: whole dialogues, beside a second agent and policies of acts in words."""

import json

import pytest
import yaml

from rlhf_dialog import EnvironmentFactory
from rlhf_dialog.config.schema import EnvironmentConfig
from rlhf_dialog.evaluation.dialogues import means
from rlhf_dialog.runs.data_source import build_simulated, spoken
from rlhf_dialog.task_oriented.commands.evaluate_dialogues import (
    EvaluatePolicyOptions,
    choose_environment,
    is_language_model,
)
from rlhf_dialog.task_oriented.commands.evaluate_policy import main
from tests.parts import tiny
from tests.parts.text_environments import Letters


@pytest.fixture
def agent(tmp_path, monkeypatch):
    """The agent of a run with `Letters`, with the run's config.yaml."""
    monkeypatch.setattr(EnvironmentFactory, "classes", EnvironmentFactory.classes | {"Letters": Letters})
    folder = tmp_path / "run" / "agent"
    tiny.gpt2().save_pretrained(folder)
    tiny.byte_tokenizer().save_pretrained(folder)
    config = {"model_path": "m", "environment": {"id": "Letters", "args": {"words": "so ?"}}}
    (folder.parent / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return folder


@pytest.mark.slow
def test_an_agent_and_its_baseline_in_the_environment_of_the_run(agent, capsys):
    words = ["--agent", str(agent), "--baseline", str(agent), "--trust_config", "--dialogues", "6"]
    assert main([*words, "--transcripts", "1"]) == 0
    assert "agent: " in capsys.readouterr().out
    result = json.loads((agent.parent / "evaluation.json").read_text())
    assert list(result["policies"]) == ["agent", "baseline"]  # nobody's acts are understood by `Letters`
    assert result["policies"]["agent"] == result["policies"]["baseline"]
    assert result["difference_from_baseline"]["reward"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    assert result["settings"]["environment"]["args"] == {"words": "so ?"}


def test_the_handcrafted_policy_succeeds_in_words_and_the_random_one_less_often():
    source = build_simulated(EnvironmentConfig(id="restaurant"), 0, "test")
    good, drawn = (means(spoken(name, source, range(20))) for name in ("handcrafted", "random"))
    assert (good["success"], good["reward"]) == (1.0, 20 - good["turns"])
    assert drawn["turns"] > 2 * good["turns"]


def test_which_environment(agent):
    assert choose_environment(EvaluatePolicyOptions(agent=agent, trust_config=True)).id == "Letters"
    other = choose_environment(EvaluatePolicyOptions(agent=agent, environment="restaurant", user="fixed"))
    assert (other.id, other.args) == ("restaurant", {"user": "fixed"})


def test_a_folder_with_a_policy_of_acts_is_not_a_language_model(agent, tmp_path):
    assert is_language_model(agent)
    assert not is_language_model(tmp_path)
    assert main(["--agent", str(tmp_path), "--dialogues", "2"]) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--temperature", "0"], "--temperature: found 0"),
        (["--temperature", "nan"], "--temperature: found nan"),
        (["--data_path", "somewhere"], "--data_path: only policies of acts"),
    ],
)
def test_what_a_language_model_does_not_take(agent, capsys, words, said):
    assert main(["--agent", str(agent), "--trust_config", "--dialogues", "2", *words]) == 2
    assert said in capsys.readouterr().err
    assert not (agent.parent / "evaluation.json").exists()
