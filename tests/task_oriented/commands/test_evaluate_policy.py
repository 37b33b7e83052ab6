import json

import pytest
import yaml

from rlhf_dialog import EnvironmentFactory
from rlhf_dialog.config.schema import EnvironmentConfig
from rlhf_dialog.evaluation.dialogues import means
from rlhf_dialog.runs.data_source import build_simulated, spoken
from rlhf_dialog.task_oriented.commands import evaluate_policy
from rlhf_dialog.task_oriented.commands.evaluate_dialogues import (
    EvaluatePolicyOptions,
    choose_environment,
    is_language_model,
)
from rlhf_dialog.task_oriented.commands.evaluate_policy import main
from tests.parts import tiny
from tests.parts.policy_runs import domain_file, policy_run
from tests.parts.small_domain import DATA
from tests.parts.text_environments import Letters


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    policy_run(folder, epoch=1, eval_interval=0).run()
    return folder


def test_another_seed_gives_other_dialogues(folder, tmp_path):
    words, measured = ["--agent", str(folder / "run" / "agent"), "--dialogues", "6", "--output"], []
    for seed in ("0", "1"):
        assert evaluate_policy.main([*words, str(tmp_path / seed), "--seed", seed]) == 0
        measured.append(json.loads((tmp_path / seed).read_text(encoding="utf-8"))["policies"]["handcrafted"])
    assert measured[0] != measured[1]  # of a policy that draws nothing


def test_an_agent_is_measured_beside_both_baselines_and_keeps_its_domain(folder, tmp_path, capsys):
    """Its run's own file may be gone, or another one."""
    output = tmp_path / "found.json"
    words = ["--agent", str(folder / "run" / "agent"), "--dialogues", "4", "--output", str(output)]
    words += ["--transcripts", "2"]
    file = folder / "tea.json"
    text = file.read_text(encoding="utf-8")
    file.unlink()
    try:
        assert evaluate_policy.main(words) == 0
    finally:
        file.write_text(text, encoding="utf-8")
    printed = capsys.readouterr().out
    assert printed.count("dialogue ") == 2
    assert "handcrafted" in printed
    found = json.loads(output.read_text(encoding="utf-8"))
    assert set(found["policies"]) == {"agent", "handcrafted", "random"}
    for metrics in found["policies"].values():
        for name in ("success", "reward", "turns", "inform_f1"):
            assert metrics[name]["low"] <= metrics[name]["mean"] <= metrics[name]["high"]
    agent, rules = (found["policies"][name]["reward"]["mean"] for name in ("agent", "handcrafted"))
    assert found["difference_from_handcrafted"]["reward"]["mean"] == pytest.approx(agent - rules)
    assert found["settings"]["error_rate"] == 0.15
    assert found["settings"]["domain"] == str(folder / "run" / "agent" / "domain.json")
    kept = json.loads((folder / "run" / "agent" / "domain.json").read_text(encoding="utf-8"))
    assert kept["constraints"] == DATA["constraints"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--agent", "RUN/checkpoints"], "is not the agent of a dialogue policy"),
        (["--agent", "RUN/agent", "--dialogues", "0"], "--dialogues: found 0"),
        (["--agent", "RUN/agent", "--transcripts", "-1"], "--transcripts: found -1"),
        (["--agent", "RUN/agent", "--domain", "restaurant"], "trained on the domain tea"),
        (["--agent", "RUN/agent", "--error_rate", "2"], "error_rate is 2.0"),
        (["--agent", "RUN/agent", "--user", "rude"], "user 'rude' is unknown"),
        (["--agent", "RUN/agent", "--environment", "restaurant"], "--environment: only language models"),
        (["--agent", "RUN/agent", "--baseline", "RUN/agent"], "--baseline: only language models"),
    ],
)
def test_a_mistake_ends_with_code_2(folder, words, said, capsys):
    assert evaluate_policy.main([word.replace("RUN", str(folder / "run")) for word in words]) == 2
    assert said in capsys.readouterr().err


def test_an_agent_whose_domain_has_moved_is_measured_with_its_new_path(folder, tmp_path, capsys):
    agent = folder / "run" / "agent"
    moved = domain_file(tmp_path)
    assert evaluate_policy.main(["--agent", str(agent), "--dialogues", "2", "--domain", str(moved)]) == 0
    assert (folder / "run" / "evaluation.json").is_file()
    changed = domain_file(tmp_path, type="bar")
    assert evaluate_policy.main(["--agent", str(agent), "--dialogues", "2", "--domain", str(changed)]) == 2
    assert "trained on an earlier state of it" in capsys.readouterr().err


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


def test_which_environment_and_what_is_a_language_model(agent, tmp_path):
    assert choose_environment(EvaluatePolicyOptions(agent=agent, trust_config=True)).id == "Letters"
    other = choose_environment(EvaluatePolicyOptions(agent=agent, environment="restaurant", user="fixed"))
    assert (other.id, other.args) == ("restaurant", {"user": "fixed"})
    assert is_language_model(agent)
    assert not is_language_model(tmp_path)


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
