"""Before a run of several ranks loads anything: do all of them write and read the same run folder?"""

import os
import stat

import pytest

from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import UserError
from rlhf_dialog.runs import shared_disk
from rlhf_dialog.runs.lock import lock_folder
from rlhf_dialog.runs.shared_disk import check_shared
from tests.parts.ppo_runs import tree
from tests.parts.ranks import in_ranks


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr(shared_disk, "PATIENCE", 0.0)


def asked(world, folder_of):
    try:
        check_shared(folder_of(world.rank), world)
    except UserError as error:
        return str(error), error.exit_code
    return None


def test_one_process_shares_with_nobody(tmp_path):
    check_shared(tmp_path / "runs/a", World())
    assert tree(tmp_path) == set()


@pytest.mark.multiprocess
def test_a_folder_that_all_see_is_left_as_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_disk, "PATIENCE", 60.0)
    assert in_ranks(3, asked, lambda _: tmp_path / "runs/a") == [None] * 3
    assert tree(tmp_path) == set()
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "metrics.jsonl").write_text("{}\n")
    (tmp_path / "a" / ".shared_disk.7").write_text("of a run that was killed")
    assert in_ranks(2, asked, lambda _: tmp_path / "a") == [None] * 2
    assert tree(tmp_path) == {"a", "a/metrics.jsonl"}


@pytest.mark.multiprocess
@pytest.mark.parametrize("exists", [True, False])
def test_a_rank_with_a_disk_of_its_own_ends_all_and_leaves_nothing(tmp_path, exists):
    """Rank 2 has another folder of that name, or none."""
    if exists:
        (tmp_path / "host1/run").mkdir(parents=True)
    before = tree(tmp_path)
    found = in_ranks(3, asked, lambda rank: tmp_path / f"host{rank // 2}" / "run")
    assert {code for _, code in found} == {2}
    for message, _ in found:
        assert message.startswith(f"rank 2: run_dir: {tmp_path}/host1/run on ")
        assert "does not show what rank 0 has written there on" in message
        assert "set run_dir to a folder there" in message
    assert tree(tmp_path) == before


@pytest.mark.multiprocess
def test_a_rank_whose_writes_arrive_elsewhere_ends_all(tmp_path, monkeypatch):
    """An overlay: rank 1 reads rank 0's file, but rank 0 never sees what rank 1 writes."""
    write = shared_disk._write

    def astray(folder, rank, word):
        if rank == 0:
            write(folder, rank, word)

    monkeypatch.setattr(shared_disk, "_write", astray)
    found = in_ranks(2, asked, lambda _: tmp_path / "run")
    assert {code for _, code in found} == {2}
    assert all("does not show what rank 1 has written there on" in message for message, _ in found)
    assert tree(tmp_path) == set()


@pytest.mark.multiprocess
@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_rank_that_may_not_write_ends_all(tmp_path):
    (tmp_path / "run").mkdir()

    def mine(world):
        folder = tmp_path / "run"
        if world.rank:
            folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
        return asked(world, lambda _: folder)

    found = in_ranks(2, mine)
    (tmp_path / "run").chmod(0o755)
    assert all("rank 1: run_dir: " in message and "cannot be written" in message for message, _ in found)


@pytest.mark.multiprocess
def test_a_folder_in_use_is_not_touched(tmp_path):
    with lock_folder(tmp_path / "run"):
        before = tree(tmp_path)
        found = in_ranks(2, asked, lambda _: tmp_path / "run")
        assert all("in use by process" in message for message, _ in found)
        assert tree(tmp_path) == before
