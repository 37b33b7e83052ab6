"""Links in a folder of somebody else are not written through, and a bot's folder that is a link is refused by its name."""

import json
import os
import secrets
import shutil

import pytest

from rlhf_dialog.atomic_files import LITTER, atomic_file, atomic_folder, remove_whole, repair_swaps, replace_text
from rlhf_dialog.commands import plot_run, report
from rlhf_dialog.commands.command_line import exit_code
from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.commands.feedback import main as feedback
from rlhf_dialog.feedback.store.bot import Bot
from rlhf_dialog.runs.lock import LOCK, check_unlocked, lock_folder
from tests.parts.folders import contents


@pytest.fixture
def outside(tmp_path):
    """A folder with a file that no command may change; checked when the test has ended."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "mine").write_text("mine")
    yield folder
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"mine": "mine"}


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    rows = [{"iteration": i + 1, "objective/score": i / 10, "objective/kl": 0.0} for i in range(3)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_page_and_a_plot_are_not_written_through_a_link(run, outside):
    for name in ("report.html", ".report.html.tmp", "plot.png", ".plot.png.tmp"):
        (run / name).symlink_to(outside / "mine")
    assert report.main([str(run)]) == 0
    assert plot_run.main(["--run", str(run)]) == 0
    for name, begin in (("report.html", b"<!doctype html>"), ("plot.png", b"\x89PNG")):
        assert (run / name).read_bytes().startswith(begin)
        assert not (run / name).is_symlink()


def test_a_link_under_the_very_name_of_a_temporary_file_is_an_error(tmp_path, outside, monkeypatch):
    monkeypatch.setattr(secrets, "token_hex", lambda size: "0" * 2 * size)
    link = tmp_path / ".x.json.00000000.tmp"
    link.symlink_to(outside / "mine")
    with pytest.raises(FileExistsError):
        replace_text(tmp_path / "x.json", "new")
    assert link.is_symlink()
    link.unlink()
    link.symlink_to(outside / "new")
    with pytest.raises(FileExistsError):
        replace_text(tmp_path / "x.json", "new")


def test_what_kills_left_of_files_is_swept_and_what_others_write_now_is_not(tmp_path):
    names = [f".x.json.{letter * 8}.tmp" for letter in "0af"]
    for name in (*names, ".x.json.mine.tmp"):
        (tmp_path / name).write_text("half")
    old = os.stat(tmp_path).st_mtime - LITTER - 1
    os.utime(tmp_path / names[0], (old, old))
    with atomic_file(tmp_path / "x.json", 0o600) as temporary:
        assert {path.name for path in tmp_path.iterdir()} == {*names[1:], ".x.json.mine.tmp", temporary.name}
        assert temporary.stat().st_mode & 0o777 == 0o600
    repair_swaps(tmp_path, ["x.json"])
    assert {path.name for path in tmp_path.iterdir()} == {"x.json", ".x.json.mine.tmp"}
    with pytest.raises(KeyboardInterrupt), atomic_file(tmp_path / "x.json"):
        raise KeyboardInterrupt
    assert {path.name for path in tmp_path.iterdir()} == {"x.json", ".x.json.mine.tmp"}


def test_links_in_the_place_of_the_hidden_folders_of_a_swap_are_removed_alone(tmp_path, outside):
    for name in (".agent.tmp", ".agent.old"):
        (tmp_path / name).symlink_to(outside)
    with atomic_folder(tmp_path / "agent") as folder:
        (folder / "file").write_text("new")
    assert {path.name for path in tmp_path.iterdir()} == {"agent", "outside"}
    for name in (".agent.tmp", ".agent.old"):
        (tmp_path / name).symlink_to(outside)
    repair_swaps(tmp_path, ["agent"])
    (tmp_path / ".agent.tmp").symlink_to(outside)
    remove_whole(tmp_path / "agent")
    assert {path.name for path in tmp_path.iterdir()} == {"outside"}
    (tmp_path / "agent").symlink_to(outside)
    with pytest.raises(UserError, match=r"agent: is a link.*put what it leads to in its place"):
        remove_whole(tmp_path / "agent")


@pytest.mark.parametrize("target", ["mine", "new"])
def test_a_lock_that_is_a_link_is_an_error(tmp_path, outside, target):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK).symlink_to(outside / target)
    check_unlocked(tmp_path / "run")
    with (
        pytest.raises(UserError, match=rf"is a link, which must be removed: '.*{LOCK}'"),
        lock_folder(tmp_path / "run"),
    ):
        pytest.fail("it was locked")


def test_the_log_of_an_error_does_not_follow_a_link(tmp_path, outside, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rlhf_dialog_error.log").symlink_to(outside / "mine")
    with exit_code(debug=False) as ending:
        raise ZeroDivisionError
    assert ending.code == 70
    assert "ZeroDivisionError" in (tmp_path / "rlhf_dialog_error.log").read_text()


@pytest.mark.parametrize("place", ["versions", "versions/0001", "night", "feedback.sqlite"])
def test_a_bots_folder_that_is_a_link_is_refused_by_its_name(bot, outside, tmp_path, capsys, place):
    path = bot.folder / place
    if path.exists():
        shutil.move(path, tmp_path / "moved")
    path.symlink_to(tmp_path / "moved" if (tmp_path / "moved").exists() else outside)
    before = contents(tmp_path / "bot")
    for words in (["learn"], ["status"], ["forget", "0" * 16]):
        assert feedback([words[0], "--run", str(bot.folder), *words[1:]]) == 2
        assert f"error: {path}: is a link, which may lead elsewhere" in capsys.readouterr().err
    assert contents(tmp_path / "bot") == before


@pytest.mark.parametrize("name", [".lock", ".lineage.lock"])
def test_a_bots_lock_that_is_a_link_makes_no_file_elsewhere(bot, outside, capsys, name):
    (bot.folder / name).unlink(missing_ok=True)
    (bot.folder / name).symlink_to(outside / "new")
    words = ["learn"] if name == ".lock" else ["forget", "0" * 16]
    assert feedback([words[0], "--run", str(bot.folder), *words[1:]]) == 2
    said = capsys.readouterr().err
    assert f"{bot.folder}: cannot be written: " in said
    assert "is a link, which must be removed" in said
    assert Bot(bot.folder).champion() == "0001"
