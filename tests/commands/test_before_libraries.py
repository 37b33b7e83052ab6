"""Help, missing folders and unknown keys are answered before torch, transformers, datasets and trl are loaded."""

import json

import pytest

from rlhf_dialog.commands.dispatcher import COMMANDS
from rlhf_dialog.feedback.commands.feedback import SUBCOMMANDS
from tests.parts.processes import run_python

PROGRAM = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from rlhf_dialog.commands.dispatcher import main
found = []
for words in json.loads(sys.argv[1]):
    sys.argv[0] = "rlhf-dialog"
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        try:
            code = main(words)
        except SystemExit as end:
            code = end.code
    heavy = [name for name in ("torch", "transformers", "datasets", "trl") if name in sys.modules]
    found.append([code, heavy, out.getvalue() + err.getvalue()])
    if heavy:
        break
json.dump(found, sys.stdout)
"""
NOWHERE = "no/such/folder"
BOT = ["feedback"]
MISSING = {  # command: words that name a folder, data or a file that is not there
    "train": ["--config", "run.yaml"],
    "chat": ["--agent", NOWHERE],
    "evaluate": ["--agent", NOWHERE, "--output", "e.json"],
    "train-sft": ["--config", "sft_quickstart.yaml", "--data_path", NOWHERE],
    "train-intent-classifier": ["--config", "intent_quickstart.yaml", "--data_path", NOWHERE],
    "train-preference-model": ["--config", "preference_quickstart.yaml", "--data_path", NOWHERE],
    "train-relevance-model": ["--data_path", NOWHERE, "--output", "o"],
    "plot-run": ["--run", NOWHERE],
    "report": [NOWHERE],
    "audit": ["--config", "run.yaml"],
    "export": ["--run", NOWHERE, "--output", "o"],
    "push-to-hub": ["--agent", NOWHERE, "--repo", "polite", "--dry_run"],
    "train-policy": ["--config", "restaurant.yaml", "--domain", NOWHERE],
    "evaluate-policy": ["--agent", NOWHERE],
}
WRITE = {"benchmark", "write-dialogues", "schema", "doctor", "feedback"}  # they read no folder; `feedback` is below
BOTS = {
    "init": ["--run", "bot", "--agent", NOWHERE],
    "rollback": ["--run", NOWHERE, "0001"],
    "export": ["--run", NOWHERE, "x.jsonl"],
    "import": ["--run", NOWHERE, "x.jsonl"],
    "backup": ["--run", NOWHERE, "x.db"],
    "forget": ["--run", NOWHERE, "0123456789abcdef"],
    "invite": ["--run", NOWHERE, "Ann"],
    "revoke": ["--run", NOWHERE, "Ann"],
    "pull": ["--run", NOWHERE, "--open_webui", "http://127.0.0.1:1", "--token_env", "HOME"],
}
RUN = f"model_path: {NOWHERE}\nenv: {{args: {{data_path: {NOWHERE}}}}}\nreward_class: {{id: LengthMatch}}\n"


@pytest.fixture
def answers(tmp_path):
    """What the program answers to lists of words, one after the other: exit code, heavy libraries, output."""
    (tmp_path / "run.yaml").write_text(RUN, encoding="utf-8")
    (tmp_path / "typo.yaml").write_text("lrr: 1\nreward_class: {id: Metoer}\n", encoding="utf-8")

    def answered(cases: list[list[str]]) -> list[tuple[int, list[str], str]]:
        ran = run_python("-c", PROGRAM, json.dumps(cases), cwd=tmp_path)
        assert ran.returncode == 0, ran.stderr
        found = json.loads(ran.stdout)
        assert [words for words, (_, heavy, _) in zip(cases, found, strict=False) if heavy] == []
        return found

    return answered


@pytest.mark.slow
def test_the_help_of_every_command(answers):
    cases = [[name, "--help"] for name in COMMANDS] + [["feedback", name, "--help"] for name in SUBCOMMANDS]
    found = answers(cases)
    assert [words for words, (code, _, text) in zip(cases, found, strict=True) if code or "usage: " not in text] == []


@pytest.mark.slow
def test_a_folder_that_is_missing(answers):
    assert {*MISSING, *WRITE} == set(COMMANDS)
    bots = [[*BOT, name, *BOTS.get(name, ["--run", NOWHERE])] for name in SUBCOMMANDS]
    cases = [[name, *words] for name, words in MISSING.items()] + bots
    found = answers(cases)
    wrong = [words for words, (code, _, text) in zip(cases, found, strict=True) if code != 2 or NOWHERE not in text]
    assert wrong == []


def test_a_key_that_the_schema_does_not_know(answers):
    cases = [[name, "--config", "typo.yaml"] for name in MISSING if name.startswith("train")]
    cases.append(["evaluate", "--agent", ".", "--output", "e.json", "--config", "typo.yaml"])
    cases.append(["audit", "--config", "typo.yaml"])
    found = answers(cases)
    told = {words[0] for words, (_, _, text) in zip(cases, found, strict=True) if "did you mean 'Meteor'" in text}
    assert {(code, "lrr: unknown" in text) for code, _, text in found} == {(2, True)}
    assert {"train", "evaluate", "audit"} <= told
