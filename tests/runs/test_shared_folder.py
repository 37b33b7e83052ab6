"""Before a run of several ranks loads anything: do all of them see the same run folder?"""

import pytest

from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import UserError
from rlhf_dialog.runs import folder
from rlhf_dialog.runs.folder import check_shared
from rlhf_dialog.runs.lock import lock_folder
from tests.parts.ppo_runs import tree
from tests.parts.ranks import in_ranks


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
def test_a_folder_that_all_see_is_left_as_it_was(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "metrics.jsonl").write_text("{}\n")
    assert in_ranks(3, asked, lambda _: tmp_path / "a") == [None] * 3
    assert tree(tmp_path) == {"a", "a/metrics.jsonl"}


@pytest.mark.multiprocess
@pytest.mark.parametrize("exists", [True, False])
def test_a_rank_with_a_disk_of_its_own_ends_all_and_leaves_nothing(tmp_path, monkeypatch, exists):
    """Rank 2 has another folder of that name, or none."""
    monkeypatch.setattr(folder, "PATIENCE", 0.0)
    if exists:
        (tmp_path / "host1/run").mkdir(parents=True)
    before = tree(tmp_path)
    found = in_ranks(3, asked, lambda rank: tmp_path / f"host{rank // 2}" / "run")
    assert {code for _, code in found} == {2}
    assert all(message.startswith(f"rank 2: run_dir: {tmp_path}/host1/run on ") for message, _ in found)
    assert tree(tmp_path) == before


@pytest.mark.multiprocess
def test_a_folder_in_use_is_not_touched(tmp_path):
    with lock_folder(tmp_path / "run"):
        before = tree(tmp_path)
        found = in_ranks(2, asked, lambda _: tmp_path / "run")
        assert all("in use by process" in message for message, _ in found)
        assert tree(tmp_path) == before
