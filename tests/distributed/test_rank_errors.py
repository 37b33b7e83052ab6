"""Rank 0 says what went wrong, once; what it does not know is said by the rank that knows."""

import sys
import time
from pathlib import Path

import pytest

from rlhf_dialog.commands.command_line import exit_code
from rlhf_dialog.distributed import process_group, rank_errors
from rlhf_dialog.errors import RunStopped, UserError
from tests.parts.ranks import CONFIG, runs_in_ranks


def speak(rank: int, errors: dict, after: float = 0) -> int:
    def run() -> None:
        world = process_group.start(CONFIG)
        with world.contact():
            if errors.get("alone") == rank:
                raise RunStopped("only here")
            if errors.get("dies") == rank:
                __import__("os")._exit(9)
            if errors.get("breaks") == rank:
                raise ZeroDivisionError("oops")
            if errors.get("alone") is not None:
                time.sleep(after)
                return
            with world.fail_together():
                if errors.get("step") == rank:
                    raise UserError("bad reward")

    def command():
        with exit_code(debug=False) as ending:
            run()
        return ending.code

    return rank_errors.with_one_voice(command)


@pytest.mark.multiprocess
def test_one_voice_tells_an_error_of_any_rank_once(tmp_path, monkeypatch):
    for wait in ("NOTICE_TIMEOUT", "REPORT_TIMEOUT"):
        monkeypatch.setattr(rank_errors, wait, 3600)  # nobody waits in vain
    for rank in (0, 1):
        (code, _, said), (other, out, err) = runs_in_ranks(2, lambda r, rank=rank: speak(r, {"step": rank}), tmp_path)
        assert (code, other) == (2, 2)
        assert said.count(f"error: rank {rank}: bad reward") == 1
        assert (out, err) == ("", "")


@pytest.mark.multiprocess
@pytest.mark.parametrize("kind", ["dies", "breaks", "all"])
def test_a_rank_that_breaks_or_dies_ends_the_others_and_a_bug_of_all_is_reported_by_rank_0(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    if kind == "breaks":
        monkeypatch.setattr(rank_errors, "REPORT_TIMEOUT", 0.5)  # rank 0 cannot report before this rank has ended
    first, second = runs_in_ranks(2, lambda r: speak(r, {"breaks": r} if kind == "all" else {kind: 1}), tmp_path)
    said = "internal error, please report" if kind == "all" else "rank 0 has lost another process"
    assert (first[0], first[2].count(said)) == (70 if kind == "all" else 3, 1)
    if kind == "all":
        assert second == (70, "", "")
    if kind == "breaks":
        assert second[0] == 70
        assert second[2].startswith("rank 1: internal error, please report: ZeroDivisionError: oops")
        assert 'ZeroDivisionError("oops")' in Path(second[2].split()[-1]).read_text(encoding="utf-8")


@pytest.mark.multiprocess
def test_what_rank_0_does_not_know_is_told_by_the_rank_that_knows(tmp_path, monkeypatch):
    monkeypatch.setattr(rank_errors, "REPORT_TIMEOUT", 0.5)
    _, second = runs_in_ranks(2, lambda r: speak(r, {"alone": 1}, after=2), tmp_path)
    assert (second[0], second[2]) == (3, "rank 1: error: only here\n")


class Store(dict):
    """What the ranks have met through, in one process; what rank 0 reported ends with it, when another has noticed."""

    def set(self, key, value):
        self[key] = value

    def check(self, keys):
        return all(key in self for key in keys)

    def add(self, key, number):
        self[key] = self.get(key, 0) + number
        if number:
            self.pop("reported")
        return self[key]


@pytest.mark.parametrize(
    ("own", "reported", "is_told"),
    [(2, "2", False), (3, "2", False), (70, "2", True), (70, "70", False), (0, "2", False)],
)
def test_another_rank_is_silent_when_rank_0_has_said_why(monkeypatch, capfd, own, reported, is_told):
    monkeypatch.setenv("RANK", "1")
    store = Store(reported=reported)
    monkeypatch.setattr(rank_errors, "MEETING", {"store": store})

    def run():
        print("a line")
        sys.stderr.write("error: mine\n")
        return own

    assert rank_errors.with_one_voice(run) == own
    assert capfd.readouterr() == ("", "rank 1: error: mine\n" if is_told else "")
    assert store.get("noticed", 0) == (own > 0)


def test_rank_0_prints_says_its_code_and_waits_until_the_other_has_noticed(monkeypatch, capfd):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for code in (0, 3):
        store = Store(noticed=1)
        monkeypatch.setattr(rank_errors, "MEETING", {"store": store})
        assert rank_errors.with_one_voice(lambda code=code: print("a line") or code) == code
        assert store.get("reported") == (str(code) if code else None)
    assert capfd.readouterr().out == "a line\na line\n"
    with pytest.raises(SystemExit) as end:
        rank_errors.with_one_voice(lambda: sys.exit(143))
    assert end.value.code == 143
