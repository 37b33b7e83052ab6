"""The subcommands of feedback, and their list."""

import json
import re
from contextlib import closing
from pathlib import Path

import pytest

from rlhf_dialog.feedback.commands import feedback
from rlhf_dialog.feedback.learning.report import NightReport
from rlhf_dialog.feedback.store.bot import Bot
from rlhf_dialog.feedback.store.people import People
from rlhf_dialog.feedback.store.store import Rating, Store
from rlhf_dialog.models.chat_agent import ChatAgent
from tests.parts.bots import exchange, pretended_agent
from tests.parts.taught_bots import new_bot, talk_to


@pytest.fixture
def run(tmp_path):
    model = pretended_agent(tmp_path / "model")
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


def test_a_bot_begins_with_a_system_prompt_or_does_not_begin(tmp_path, agent_folder, capsys):
    words = ["init", "--agent", str(agent_folder), "--run", str(tmp_path / "bot")]
    assert feedback.main([*words, "--system_prompt", "k" * 200]) == 2
    assert "system_prompt: takes" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert feedback.main([*words, "--system_prompt", "Be kind ."]) == 0
    agent = ChatAgent.load(Bot(tmp_path / "bot").agent_folder("0001"))
    assert agent.encoder.encode_prompt(["a"]) == ChatAgent.load(agent_folder).encoder.encode_prompt(["a"], "Be kind .")


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
        dialogue, (answer,) = exchange(store, "ann", f"question {number}", [f"answer {number}"])
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
    words = ["2 liked, 1 disliked, 1 edits, 0 choices", "1 scores of 3"]
    words += [f"people: 2 (largest shares: {judged.hash_person('ann')} 75%, {judged.hash_person('bob')} 25%)"]
    words += ["4 ratings so far", "2 are held out", "with 7 held-out ratings (min_heldout)", "about 35 ratings"]
    assert [word for word in words if word not in "\n".join(lines[4:])] == []


def test_forget(run, judged, capsys):
    bot, bob = Bot(run), judged.hash_person("bob")
    bot.add_version(fill, {"people": [bob]})
    assert feedback.main(["forget", "--run", str(run), bob]) == 0
    assert f"2 rows of {bob} removed\nwarning: trained on them and still there: 0002" in capsys.readouterr().err
    assert judged.people() == {judged.hash_person("ann")}
    assert feedback.main(["forget", "--run", str(run), bob]) == 2
    assert f"nothing is stored of the person {bob}" in capsys.readouterr().err


def test_a_name_is_forgotten_with_all_that_is_stored_of_it(run, judged, capsys):
    people = People.load(run)
    keys = {name: people.invite(name) for name in ("Ann", "Ben")}
    hashes = {name: judged.hash_person(people.get(name).person) for name in keys}
    for name in keys:
        judged.add_turn(judged.begin(people.get(name).person, "api"), 0, "user", f"a line of {name}")
    assert feedback.main(["forget", "--run", str(run), "An"]) == 2
    assert "did you mean 'Ann'? `feedback people` lists" in capsys.readouterr().err
    assert feedback.main(["forget", "--run", str(run), "Ann"]) == 0
    said = capsys.readouterr().err
    assert "2 rows of Ann removed" in said
    assert "people.json: name, id and keys of Ann removed" in said
    assert (people.find(keys["Ann"]), people.find(keys["Ben"]).name) == (None, "Ben")
    assert feedback.main(["forget", "--run", str(run), hashes["Ben"]]) == 0  # the hash of one who was invited
    assert people.list() == []
    assert people.has_keys()
    names = [name.encode() for name in keys]
    assert [
        one.name for one in run.iterdir() if one.is_file() and any(name in one.read_bytes() for name in names)
    ] == []
    assert not set(hashes.values()) & judged.people()


def test_keys_are_given_revoked_and_listed(run, capsys):
    def call(name, *words):
        code = feedback.main([name, "--run", str(run), *words])
        out, err = capsys.readouterr()
        return code, out, err

    assert "nobody was invited yet" in call("people")[2]
    code, key, said = call("invite", "Ann")
    assert (code, key.count("\n"), "key of Ann (user)" in said, key.strip() in said) == (0, 1, True, False)
    people = People.load(run)
    assert people.find(key.strip()).name == "Ann"
    assert "key of Ann (teacher)" in call("invite", "Ann", "--role", "teacher")[2]
    call("invite", "Open WebUI", "--role", "gateway")
    assert "2 keys of Ann revoked" in call("revoke", "Ann")[2]
    assert call("revoke", "Ann")[::2] == (2, f"error: {people.path}: Ann has no key that works\n")
    with closing(Bot(run).store()) as store:
        dialogue, (answer,) = exchange(store, "p")
        store.add_feedback(dialogue, people.get("Ann").person, Rating("thumb", answer, 1))
        store.add_feedback(dialogue, people.get("Ann").person, Rating("thumb", answer, -1))
        hashed = store.hash_person(people.get("Ann").person)
    lines = [line.split() for line in call("people")[1].splitlines()]
    assert lines[1][:3] == ["Ann", "teacher", "revoked"]
    assert lines[1][4:] == [hashed, "2"]
    assert lines[2][:4] == ["Open", "WebUI", "gateway", "1"]
    with pytest.raises(SystemExit):
        call("invite", "Ann", "--role", "owner")
    code, link, said = call("invite", "Ben", "--page")
    assert (code, link.partition("=")[0], "Ben" in said, link.partition("=")[2].strip() in said) == (
        0,
        "#invite",
        True,
        False,
    )
    assert people.trade(link.partition("=")[2].strip()) == people.get("Ben").person
    assert call("invite", "Ben", "--page", "--role", "teacher")[0] == 2


def test_it_learns_and_says_what_it_did(tmp_path, capsys):
    taught = new_bot(tmp_path)
    talk_to(taught, 40)
    assert feedback.main(["learn", "--run", str(taught.folder), "--dry_run"]) == 0
    assert "dry run: nothing was changed" in capsys.readouterr().out
    assert taught.champion() == "0001"
    assert feedback.main(["learn", "--run", str(taught.folder)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^promoted: 0002 is the champion", out, re.MULTILINE), out
    assert feedback.main(["learn", "--run", str(taught.folder)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("nothing changed: there is no new feedback")
    assert taught.champion() == "0002"


def test_a_night_that_no_terminal_shows_says_how_far_it_is(run, monkeypatch, caplog):
    def learn(_, dry_run, watch, trust_config):
        for done in (1, 2, 4):
            watch(done, 4)
        return NightReport("bot", "0001", 0, {}, {}, "", "nothing changed")

    monkeypatch.setattr("rlhf_dialog.feedback.learning.night.learn", learn)
    caplog.set_level("INFO", "rlhf_dialog")
    steps = ["learning: step 1 of 4", "learning: step 2 of 4, 0 s left"]
    for interval, wanted in ((0, steps), (1000, [])):
        monkeypatch.setattr("rlhf_dialog.feedback.commands.bot.INTERVAL", interval)
        caplog.clear()
        assert feedback.main(["learn", "--run", str(run)]) == 0
        told = [line.message for line in caplog.records if "learning: " in line.message]
        assert told == [*wanted, "learning: testing the new version"]


def test_in_and_out(run, monkeypatch, capsys):
    monkeypatch.chdir(run.parent)
    rows = [{"prompt": f"Is it far ? {n}", "completion": "Yes .", "label": False} for n in range(20)]
    Path("kto.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    capsys.readouterr()

    def done(*words):
        assert feedback.main([words[0], "--run", "bot", *words[1:]]) == 0
        return capsys.readouterr().err

    def written(name):
        return [json.loads(line) for line in Path(name).read_text().splitlines()]

    assert "20 dialogues and 20 events added; 0 were" in done("import", "kto.jsonl")
    assert "20 rows written to out.jsonl" in done("export", "out.jsonl")
    assert written("out.jsonl")[0]["turns"][1]["text"] == "Yes ."
    done("export", "kto.jsonl", "--format", "kto")
    assert [row["completion"] for row in written("kto.jsonl")] == [[{"role": "assistant", "content": "Yes ."}]] * 20
    done("export", "some.jsonl", "--format", "kto", "--without_heldout")
    heldout = sum(dialogue["dialogue"]["heldout"] for dialogue in written("out.jsonl"))
    assert len(written("some.jsonl")) == 20 - heldout < 20
    done("backup", "copy.sqlite")
    assert Store(Path("copy.sqlite"), Bot("bot").id).last_event() == 20
