"""`feedback init | status | rollback | forget`."""

import pytest

from rlhf_dialog.feedback.commands import feedback
from rlhf_dialog.feedback.store.bot import Bot
from rlhf_dialog.feedback.store.store import Rating


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


def test_rollback(run, capsys):
    bot = Bot(run)
    bot.promote(bot.add_version(fill, {}))
    assert feedback.main(["rollback", "--run", str(run), "0001"]) == 0
    assert bot.champion() == "0001"
    assert "the champion is 0001 now (it was 0002)" in capsys.readouterr().err
    assert feedback.main(["rollback", "--run", str(run), "0007"]) == 2
    assert "there is no version '0007'; choose one of 0001, 0002" in capsys.readouterr().err


@pytest.fixture
def judged(run, monkeypatch):
    """Two people's feedback on three dialogues, of which the third is held out."""
    monkeypatch.setattr("rlhf_dialog.feedback.store.store.is_heldout", lambda dialogue: dialogue.startswith("2"))
    ids = iter(f"{number}{'0' * 31}" for number in range(9))
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
        f"people: 2 (largest shares: {judged.hash_person('ann')} 75%, {judged.hash_person('bob')} 25%)",
        "4 of about 35 ratings: one dialogue of 5 is held out, and learning begins with 7 held-out ratings (min_heldout; 2 now)",
    ]
    bot.settings_path.write_text("min_heldot: 7\n")
    assert feedback.main(["status", "--run", str(run)]) == 2
    assert "min_heldot" in capsys.readouterr().err


def test_forget(run, judged, capsys):
    bot, bob = Bot(run), judged.hash_person("bob")
    bot.add_version(fill, {"people": [bob]})
    assert feedback.main(["forget", "--run", str(run), bob]) == 0
    assert f"2 rows of {bob} removed\nwarning: trained on them and still there: 0002" in capsys.readouterr().err
    assert judged.people() == {judged.hash_person("ann")}
    assert feedback.main(["forget", "--run", str(run), bob]) == 2
    assert f"nothing is stored of the person {bob}" in capsys.readouterr().err
    assert feedback.main(["forget", "--run", str(run), "bob"]) == 2
    assert "wanted the 16 hexadecimal digits" in capsys.readouterr().err
