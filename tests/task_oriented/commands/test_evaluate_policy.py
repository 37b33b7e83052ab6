"""evaluate-policy: three policies on the same dialogues, a table, a JSON, transcripts."""

import json

import pytest

from rlhf_dialog.task_oriented.commands import evaluate_policy
from tests.parts.policy_runs import domain_file, policy_run
from tests.parts.small_domain import DATA


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    policy_run(folder, epoch=1, eval_interval=0).train()
    return folder


@pytest.mark.slow
def test_the_agent_is_measured_beside_both_baselines(folder, tmp_path, capsys):
    output = tmp_path / "found.json"
    words = ["--agent", str(folder / "run" / "agent"), "--dialogues", "30", "--output", str(output)]
    assert evaluate_policy.main([*words, "--transcripts", "2"]) == 0
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
    assert evaluate_policy.main(words) == 0
    assert json.loads(output.read_text(encoding="utf-8")) == found


def test_an_agent_keeps_its_domain(folder, tmp_path):
    """Its run's own file may be gone, or another one."""
    output = tmp_path / "found.json"
    words = ["--agent", str(folder / "run" / "agent"), "--dialogues", "4", "--output", str(output)]
    file = folder / "tea.json"
    text = file.read_text(encoding="utf-8")
    file.unlink()
    try:
        assert evaluate_policy.main(words) == 0
    finally:
        file.write_text(text, encoding="utf-8")
    found = json.loads(output.read_text(encoding="utf-8"))
    assert found["settings"]["domain"] == str(folder / "run" / "agent" / "domain.json")
    kept = json.loads((folder / "run" / "agent" / "domain.json").read_text(encoding="utf-8"))
    assert kept["constraints"] == DATA["constraints"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--agent", "RUN"], "is not the agent of a dialogue policy"),
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
