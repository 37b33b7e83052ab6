"""The command that compares simulated users with real ones."""

import json
from dataclasses import replace

import pytest

from experiments.users import command as compare_users
from rlhf_dialog.commands.options import parse_options
from tests.parts.small_domain import DATA
from tests.parts.tiny import write_data

pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def dialogues(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("dialogues"), count=16)


def compare(tmp_path, data, *words):
    """The exit code, and the written JSON if there is one."""
    output = tmp_path / "users.json"
    code = compare_users.main(["--data_path", str(data), "--output", str(output), *map(str, words)])
    return code, json.loads(output.read_text()) if output.exists() else None


@pytest.mark.slow
def test_all_kinds_of_users(tmp_path, dialogues, agent_folder, capsys):
    domain = tmp_path / "tea.json"
    domain.write_text(json.dumps(DATA))
    report = tmp_path / "users.md"
    code, found = compare(
        *(tmp_path, dialogues, "--users", "agenda", "agenda_in_model_words", "language_model", "corpus", "agenda"),
        *("--domain", domain, "--model", agent_folder, "--dialogues", 16, "--max_turns", 2, "--max_new_tokens", 4),
        *("--report", report),
    )
    assert code == 0
    assert list(found["users"]) == list(compare_users.USERS)
    assert found["dialogues"] == 16
    assert found["settings"]["splits"] == ["validation", "test"]
    corpus = found["users"]["corpus"]
    assert corpus["num_turns"]["simulated"] > 10
    assert "turns with question" in corpus["measures"]
    assert set(corpus["measures"]["words in a turn"]) == {"real", "simulated", "difference", "d"}
    assert set(corpus["classifier"]) == {"turns", "dialogues", "telling"}
    assert found["users"]["agenda"]["classifier"]["turns"]["mean"] > 0.9
    assert not [name for name in found["users"]["language_model"]["measures"] if name.startswith("turns with")]
    shown = capsys.readouterr().out
    for name, one in found["users"].items():
        assert f"{name}, 16 dialogues of each kind" in shown
        assert f"- {one['sentences'][0]}" in shown
        assert f"### {name}" in report.read_text()
    assert (tmp_path / "users.png").read_bytes().startswith(b"\x89PNG")


def test_the_halves_have_no_dialogue_in_common(dialogues):
    options = parse_options(
        compare_users.CompareUsersOptions, ["--data_path", str(dialogues), "--users", "corpus", "--output", "x"]
    )
    real, others = compare_users._halves(options)
    assert len(real) == len(others) == 16
    assert not {tuple(record.turns) for record in real} & {tuple(record.turns) for record in others}
    assert compare_users._halves(replace(options, seed=1))[0] != real
