"""What a user got wrong ends a command with exit code 2 and one message that names it; nothing is written."""

import hashlib
import json
from pathlib import Path

import pytest
import yaml

from rlhf_dialog.feedback.commands.feedback import main
from rlhf_dialog.feedback.store.bot import Bot
from rlhf_dialog.feedback.store.store import Store
from tests.parts.bots import pretended_agent

ASK, YES = {"role": "user", "content": "Is it far ?"}, {"role": "assistant", "content": "Yes ."}
KTO, DPO = {"prompt": "a", "completion": "b", "label": True}, {"prompt": "a", "chosen": "b", "rejected": "c"}
TURN = {"position": 0, "speaker": "user", "created": 1.0, "token_ids": None, "logprobs": None, "sampling": None}
RATING = {"turn": 2, "kind": "thumb", "value": 1.0, "text": None, "other": None, "person": "a" * 16, "created": 3.0}
LINE = {
    "format": "rlhf-dialog-feedback",
    "format_version": 1,
    "bot": "0" * 32,
    "dialogue": {"id": "1" * 32, "started": 1.0, "person": "a" * 16, "source": "page", "heldout": False},
    "turns": [
        TURN | {"id": 1, "text": "Is it far ?", "version": None},
        TURN | {"id": 2, "text": "Yes .", "version": "0001", "position": 1, "speaker": "agent"},
    ],
    "feedback": [RATING | {"id": 1}],
}
RECORD = {"created": "", "parent": None, "method": None, "status": "champion", "last_event": 0, "num_events": {}}
RECORD |= {"people": [], "gate": None, "tainted": False}


def line(place=None, key="", value=None):
    """An import of one dialogue of our own format with one value changed: of the line, of its dialogue, or of its last row."""
    row = json.loads(json.dumps(LINE))
    part = row if place is None else row[place] if place == "dialogue" else row[place][-1]
    part[key] = value
    return {"rows.jsonl": json.dumps(row)}, "import --run bot rows.jsonl"


def rows(*parts):
    """An import of these rows."""
    return {"rows.jsonl": "".join(json.dumps(row) + "\n" for row in parts)}, "import --run bot rows.jsonl"


def lineage(**changes):
    """A look at a bot whose lineage has these keys."""
    tree = {"format_version": 1, "bot": "x", "versions": {"0001": RECORD}} | changes
    return {"bot/lineage.json": json.dumps(tree)}, "status --run bot"


def record(**changes):
    return lineage(versions={"0001": RECORD | changes})


def keys(**settings):
    return {"bot/config.yaml": yaml.safe_dump(settings)}, "status --run bot"


TABLE = [
    (({}, "init --run bot --agent model"), ["bot", "already"]),
    (({"notes/x": ""}, "init --run notes --agent model"), ["notes", "empty"]),
    (({}, "init --run new --agent nowhere/"), ["'nowhere/'"]),
    (({}, "init --run new --agent model/config.json"), ["model/config.json"]),
    (({}, "init --run new --agent ."), ["config.json and weights"]),
    (({}, "status --run model"), ["model", "feedback init"]),
    (({"bot/lineage.json": "{"}, "status --run bot"), ["lineage.json", "damaged"]),
    (lineage(format_version=2), ["format version 2", "update"]),
    (lineage(versions={}), ["damaged"]),
    (lineage(versions={"0002": RECORD}), ["damaged"]),
    (lineage(versions={"0001": RECORD, "../x": RECORD}), ["damaged"]),
    *((record(**{key: value}), ["damaged"]) for key, value in {"parent": ["0001"], "people": None, "gate": "x"}.items()),
    (({"bot/champion": "0007\n"}, "status --run bot"), ["'0007'", "0001"]),
    (({"bot/champion": None}, "status --run bot"), ["champion"]),
    (({"bot/feedback.sqlite": None}, "status --run bot"), ["feedback.sqlite", "feedback init"]),
    (keys(persn_cap=0.1), ["persn_cap", "'person_cap'"]),
    (keys(min_words=9, max_words=3), ["min_words", "9", "max_words", "3"]),
    (keys(beta=-1, epoch=2), ["2 problems", "beta", "'epochs'"]),
    (keys(page_message_chars=50000), ["page_request_bytes", "262144", "400000"]),
    (({"bot/config.yaml": "- a"}, "status --run bot"), ["config.yaml", "mapping"]),
    (({}, "rollback --run bot 0001"), ["0001", "already"]),
    (({}, "rollback --run bot 0009"), ["'0009'", "0001"]),
    (({}, "rollback --run bot ../x"), ["'../x'", "0001"]),
    (({}, "forget --run bot bob"), ["'bob'", "16"]),
    (({}, "export --run bot out.txt"), ["out.txt", ".jsonl"]),
    (({}, "export --run bot out.jsonl --without_heldout"), ["--without_heldout"]),
    (({}, "export --run bot out.jsonl"), ["dialogues"]),
    (({}, "export --run bot out.jsonl --format dpo"), ["edits or choices"]),
    (({}, "export --run bot model/config.json/out.jsonl"), ["cannot be written"]),
    (({}, "backup --run bot bot/feedback.sqlite"), ["bot/feedback.sqlite", "itself"]),
    (({}, "backup --run bot model"), ["model", "cannot be written"]),
    (({}, "learn --run bot --candidate x --dry_run"), ["--candidate", "--dry_run"]),
    (({}, "import --run bot absent.csv"), ["absent.csv"]),
    (rows({"question": "x", "reply": "y"}), ["rows.jsonl", "'question', 'reply'", "completion"]),
    (({"rows.txt": "x"}, "import --run bot rows.txt"), ["rows.txt"]),
    (rows(KTO, KTO | {"lable": 3}), ["line 2", "'lable'", "'label'", "--ignore lable"]),
    (rows(KTO, KTO | {"label": "maybe"}), ["line 2", "'maybe'"]),
    (rows(KTO, KTO | {"label": None}), ["line 2", "'label'"]),
    (rows(KTO, KTO | {"completion": " "}), ["line 2", "completion"]),
    (rows(KTO, KTO | {"completion": [ASK]}), ["line 2", "assistant"]),
    *((rows(KTO, KTO | {"prompt": value}), ["line 2", "wanted"]) for value in (7, [{"role": "user"}], [ASK | {"content": 7}])),
    (rows(DPO, DPO | {"rejected": "b"}), ["line 2", "same"]),
    (rows(DPO, {"chosen": [ASK, YES], "rejected": [ASK | {"content": "Far ?"}, YES]}), ["line 2", "'chosen'", "'rejected'"]),
    (line(None, "format_version", 3), ["line 1", "format version 3", "update"]),
    (line(None, "colour", 1), ["line 1", "'colour'"]),
    (line("turns", "colour", 1), ["line 1", "'colour'"]),
    *((line(place, key, value), ["line 1", "damaged"]) for place, key, value in [
        ("feedback", "kind", "praise"), ("feedback", "turn", 99), ("feedback", "turn", 1), ("feedback", "value", 7),
        ("feedback", "person", "ann"), ("turns", "speaker", "system"), ("turns", "position", -1), ("turns", "text", 7),
        ("dialogue", "id", "../../x"), ("dialogue", "started", "yesterday"), (None, "turns", None)]),
    (({}, "serve --run bot --host 0.0.0.0"), ["--host 0.0.0.0", "--auth"]),
    (({}, "serve --run bot --host 192.0.2.1 --port 1 --auth ann:password"), ["--port 1", "192.0.2.1"]),
    (({}, "serve --run bot --host nowhere..invalid"), ["--host nowhere..invalid"]),
    (({}, "serve --run bot --port 70000"), ["--port 70000", "65535"]),
    (({}, "serve --run bot --auth ann:short"), ["--auth", "8"]),
    (({}, "serve --run bot --auth :password"), ["--auth", "user:password"]),
    (({"people": "ann:password 1\n\nben\n"}, "serve --run bot --auth people"), ["people, line 3", "user:password"]),
    (({}, "serve --run bot --allow_host http://chat.example.org"), ["--allow_host http://chat.example.org"]),
    (({"bot/config.yaml": "page_looks_a_day: 0"}, "serve --run bot"), ["page_looks_a_day", "0"]),
    (({}, "rolback --run bot 0001"), ["'rolback'", "'rollback'"]),
]  # fmt: skip


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a bot, whose agent is two files that no command of the table loads."""
    monkeypatch.chdir(tmp_path)
    Bot.create("bot", str(pretended_agent(Path("model"))))


def state():
    """The hash of every file, but for the journal and the locks."""
    paths = [path for path in Path().rglob("*") if path.is_file()]
    lasting = [path for path in paths if not path.name.endswith(("-wal", "-shm", ".lock"))]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in lasting}


@pytest.mark.parametrize(("given", "words"), TABLE, ids=lambda one: one[1] if isinstance(one, tuple) else "")
def test_a_mistake_is_one_message_and_writes_nothing(here, capsys, given, words):
    files, command = given
    for name, content in files.items():
        path = Path(name)
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True) if content is None else path.write_text(content, encoding="utf-8")
    before = state()
    assert main(command.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert [word for word in words if word not in error] == []
    assert state() == before


def test_the_store_of_another_bot(here, capsys):
    Path("bot/feedback.sqlite").unlink()
    Store.create(Path("bot/feedback.sqlite")).close()
    assert main(["status", "--run", "bot"]) == 2
    assert "another bot" in capsys.readouterr().err
