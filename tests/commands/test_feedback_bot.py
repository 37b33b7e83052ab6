"""`feedback init | status | rollback | forget`."""

import pytest

from rlhf_dialog.commands import feedback
from rlhf_dialog.feedback.bot import Bot


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


def test_status_and_forget(run, capsys):
    store = Bot(run).store()
    for number, value in enumerate([1, 1, -1]):
        dialogue = store.begin("ann", "terminal")
        answer = store.add_turn(dialogue, 0, "agent", f"answer {number}")
        store.add_feedback(dialogue, "thumb", "ann", turn=answer, value=value)
    store.add_feedback(dialogue, "score", "bob", turn=answer, value=3)
    store.add_feedback(dialogue, "edit", "bob", turn=answer, text="better")
    assert feedback.main(["status", "--run", str(run)]) == 0
    shown = capsys.readouterr().out
    assert "0001 champion" in shown
    assert "feedback: 2 liked, 1 disliked, 1 edits, 0 choices" in shown
    assert f"people: 2 ({store.hashed('ann')} 60%, {store.hashed('bob')} 40%)" in shown
    assert feedback.main(["forget", "--run", str(run), store.hashed("bob")]) == 0
    assert feedback.main(["forget", "--run", str(run), store.hashed("bob")]) == 2
    assert "nothing is stored of the person" in capsys.readouterr().err
    assert feedback.main(["forget", "--run", str(run), "bob"]) == 2
    assert "wanted the 16 hexadecimal digits" in capsys.readouterr().err
