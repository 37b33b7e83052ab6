"""The subcommands of feedback, their list, and a bot in a chat."""

import json
import os
import re
from pathlib import Path

import pytest

from rlhf_dialog.commands.chat import ChatOptions
from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.commands import feedback
from rlhf_dialog.feedback.commands.chat_bot import Partner, bots_in
from rlhf_dialog.feedback.store.bot import Bot
from rlhf_dialog.feedback.store.store import Rating, Store
from rlhf_dialog.models.network import AGENT_FILE
from tests.parts.processes import output_of, run_python
from tests.parts.taught_bots import new_bot, talk_to


@pytest.fixture
def run(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "model.safetensors"):
        (model / name).write_text(name)
    assert feedback.main(["init", "--run", str(tmp_path / "bot"), "--agent", str(model)]) == 0
    return tmp_path / "bot"


def fill(folder):
    (folder / "agent").mkdir()


def test_alone_it_lists_its_subcommands_and_each_has_help(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["rlhf-dialog feedback"])
    assert feedback.main([]) == 0
    shown = capsys.readouterr().out
    assert [line.split()[0] for line in shown.splitlines() if line.startswith("  ")] == list(feedback.SUBCOMMANDS)
    for name in feedback.SUBCOMMANDS:
        with pytest.raises(SystemExit) as end:
            feedback.main([name, "--help"])
        assert end.value.code == 0
        assert f"usage: rlhf-dialog feedback {name} " in capsys.readouterr().out


@pytest.mark.slow
def test_as_a_module(tmp_path):
    ran = run_python("-m", "rlhf_dialog.feedback", "status", "--run", "nowhere", cwd=tmp_path)
    assert (ran.returncode, ran.stderr.startswith("error: nowhere: ")) == (2, True)


def test_rollback(run, capsys):
    bot = Bot(run)
    bot.promote(bot.add_version(fill, {}))
    assert feedback.main(["rollback", "--run", str(run), "0001"]) == 0
    assert bot.champion() == "0001"
    assert "the champion is 0001 now (it was 0002)" in capsys.readouterr().err


@pytest.fixture
def judged(run, monkeypatch):
    """Two people's feedback on three dialogues, of which the third is held out."""
    monkeypatch.setattr("rlhf_dialog.feedback.store.store.is_heldout", lambda dialogue: dialogue.startswith("2"))
    ids = iter(f"{number}{'0' * 31}" for number in range(99))
    monkeypatch.setattr("rlhf_dialog.feedback.store.store.secrets.token_hex", lambda _: next(ids))
    store = Bot(run).store()
    for number, value in enumerate([1, 1, -1]):
        dialogue = store.begin("ann", "terminal")
        store.add_turn(dialogue, 0, "user", f"question {number}")
        answer = store.add_turn(dialogue, 1, "agent", f"answer {number}")
        store.add_feedback(dialogue, "ann", Rating("thumb", turn=answer, value=value))
    store.add_feedback(dialogue, "bob", Rating("score", turn=answer, value=3))
    store.add_feedback(dialogue, "bob", Rating("edit", turn=answer, text="better"))
    yield store
    store.close()


def test_status(run, judged, capsys):
    bot = Bot(run)
    bot.promote(bot.add_version(fill, {"method": "kto_dpo", "num_events": {"thumb": 2}, "created": "2026-11-22T01:00"}))
    bot.add_version(fill, {"method": "kto_dpo", "status": "refused", "people": ["0" * 16]})
    bot.settings_path.write_text("min_heldout: 7\n")
    assert feedback.main(["status", "--run", str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("└── 0001 former champion  ")
    assert lines[2] == "    └── 0002 champion  2026-11-22  kto_dpo  2 thumb"
    assert lines[3].startswith("        └── 0003 refused  ")
    assert lines[3].endswith("  kto_dpo  trained on a forgotten person")
    assert lines[4:] == [
        "feedback: 2 liked, 1 disliked, 1 edits, 0 choices",
        "left out: 1 scores of 3, which say neither",
        f"people: 2 (largest shares: {judged.hash_person('ann')} 75%, {judged.hash_person('bob')} 25%)",
        "4 of about 35 ratings: one dialogue of 5 is held out, and learning begins with 7 held-out ratings (min_heldout; 2 now)",
    ]


@pytest.mark.slow
def test_status_and_forget_load_no_model(run, judged):
    program = (
        "import sys\n"
        "from rlhf_dialog.feedback.commands.feedback import main\n"
        f"main(['status', '--run', {str(run)!r}]), main(['forget', '--run', {str(run)!r}, '{judged.hash_person('bob')}'])\n"
        "print(sorted({'torch', 'transformers', 'datasets', 'scipy', 'pandas'} & set(sys.modules)))"
    )
    assert output_of("-c", program).endswith("\n[]\n")


def test_forget(run, judged, capsys):
    bot, bob = Bot(run), judged.hash_person("bob")
    bot.add_version(fill, {"people": [bob]})
    assert feedback.main(["forget", "--run", str(run), bob]) == 0
    assert f"2 rows of {bob} removed\nwarning: trained on them and still there: 0002" in capsys.readouterr().err
    assert judged.people() == {judged.hash_person("ann")}
    assert feedback.main(["forget", "--run", str(run), bob]) == 2
    assert f"nothing is stored of the person {bob}" in capsys.readouterr().err


@pytest.fixture
def taught(tmp_path):
    bot = new_bot(tmp_path)
    talk_to(bot, 40)
    return bot


def test_it_learns_and_says_what_it_did(taught, capsys):
    assert feedback.main(["learn", "--run", str(taught.folder), "--dry_run"]) == 0
    assert "dry run: nothing was changed" in capsys.readouterr().out
    assert taught.champion() == "0001"
    assert feedback.main(["learn", "--run", str(taught.folder)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^promoted: 0002 is the champion", out, re.MULTILINE), out
    assert taught.champion() == "0002"


def test_in_and_out(run, monkeypatch, capsys):
    monkeypatch.chdir(run.parent)
    files_run, row = "bot", {"prompt": "Is it far ?", "completion": "Yes .", "label": False}
    Path("kto.jsonl").write_text(json.dumps(row) + "\n")
    capsys.readouterr()
    assert feedback.main(["import", "--run", files_run, "kto.jsonl"]) == 0
    assert "kto.jsonl (kto): 1 dialogues and 1 events added; 0 were there already" in capsys.readouterr().err
    assert feedback.main(["export", "--run", files_run, "out.jsonl"]) == 0
    assert "1 rows written to out.jsonl" in capsys.readouterr().err
    assert json.loads(Path("out.jsonl").read_text())["turns"][1]["text"] == "Yes ."
    assert feedback.main(["export", "--run", files_run, "trl.jsonl", "--format", "kto"]) == 0
    assert json.loads(Path("trl.jsonl").read_text())["completion"] == [{"role": "assistant", "content": "Yes ."}]
    assert feedback.main(["backup", "--run", files_run, "copy.sqlite"]) == 0
    assert Store(Path("copy.sqlite"), Bot(files_run).id).last_event() == 1


def partner(folder, **options):
    return Partner(str(folder), ChatOptions(seed=0, **options))


def test_bots_are_found_by_their_champion(bot, tmp_path):
    (tmp_path / "runs/of_a_model/agent").mkdir(parents=True)
    (tmp_path / "runs/no_bot").mkdir()
    (tmp_path / "runs/no_bot/champion").touch()
    (tmp_path / "runs/bot").symlink_to(bot.folder)
    assert bots_in([tmp_path / "runs", tmp_path / "nowhere"]) == {tmp_path / "runs/bot": tmp_path / "runs/bot/champion"}


def test_an_agent_stores_nothing_and_asks_for_no_id(agent_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with partner(agent_folder) as one:
        assert one.introduction() == [f"Agent: {agent_folder}"]
        talk = one.begin()
        *_, answer = talk.say("Hello")
        assert talk.last.text == answer
        with pytest.raises(UserError, match="feedback init"):
            talk.thumb(True)
        talk.end()
    assert os.listdir(tmp_path) == []


def test_the_person_of_a_bot_is_that_of_the_terminal(bot, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with partner(bot.folder) as one:
        assert one.introduction()[0] == f"Agent: {bot.folder}, version 0001"
        assert not (tmp_path / "state").exists()
        list(one.begin().say("Hello"))
        kept = (tmp_path / "state/rlhf-dialog/person").read_text().strip()
        assert [dialogue.person for dialogue in one.store.dialogues()] == [one.store.hash_person(kept)]


@pytest.mark.parametrize("option", [{"tokenizer": "x"}, {"trust_remote_code": True}])
def test_a_bot_takes_no_tokenizer_and_no_code(bot, option):
    with pytest.raises(UserError, match="a bot has its own tokenizer and runs no code"):
        partner(bot.folder, **option)


def test_an_agent_says_whom_it_plays(agent_folder, bot):
    settings = json.loads((agent_folder / AGENT_FILE).read_text())
    for folder in (agent_folder, bot.agent_folder("0001")):
        (folder / AGENT_FILE).write_text(json.dumps(settings | {"introduction": "A waiter. Try: Tea, please."}))
    with partner(agent_folder) as one:
        assert one.introduction() == [f"Agent: {agent_folder}", "A waiter. Try: Tea, please."]
    with partner(bot.folder) as one:
        assert one.introduction()[:2] == [f"Agent: {bot.folder}, version 0001", "A waiter. Try: Tea, please."]
