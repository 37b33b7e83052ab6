"""EpisodeStack against a plain list of dialogues, its files against those of safetensors, and what happens to its folder."""

import errno
import gc
from random import Random

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.policies import episode_stack
from rlhf_dialog.task_oriented.policies.episode_stack import EpisodeStack, split_slices


def dialogue(number, length):
    """Turn t of dialogue n: seen [n, t], good where n + t is even, paid n + t / 10."""
    turns = np.arange(length)
    seen = np.stack([np.full(length, number), turns], axis=1).astype(np.float32)
    return {"seen": seen, "good": (number + turns) % 2 == 0, "paid": number + turns / 10}


def filled(capacity, in_memory, lengths):
    """A stack of dialogues 0, 1, ... of these lengths, and the same as a list."""
    stack, kept = EpisodeStack(capacity, in_memory), []
    for number, length in enumerate(lengths):
        stack.append(dialogue(number, length))
        kept.append(dialogue(number, length))
        while len(kept) > 1 and sum(len(own["paid"]) for own in kept) > capacity:
            kept.pop(0)
    return stack, kept


def joined(dialogues):
    return {name: np.concatenate([own[name] for own in dialogues]) for name in ("seen", "good", "paid")}


def assert_same(found, wanted):
    assert set(found) == set(wanted)
    for name, column in wanted.items():
        np.testing.assert_array_equal(found[name], column, strict=True)


@pytest.mark.parametrize("seed", range(40))
def test_a_stack_gives_what_a_list_of_dialogues_gives(seed, tmp_path):
    random = Random(seed)
    capacity, in_memory = random.choice([1, 7, 30, 100]), random.choice([0, 1, 5, 20, 200])
    stack, kept = filled(capacity, in_memory, [random.randint(1, 9) for _ in range(random.randint(1, 60))])
    everything, lengths = joined(kept), [len(own["paid"]) for own in kept]
    assert (len(stack), stack.lengths.tolist()) == (sum(lengths), lengths)
    assert stack.ends.tolist() == np.cumsum(lengths).tolist()
    rows = np.array([random.randrange(len(stack)) for _ in range(40)])
    assert_same(stack.rows(rows), {name: column[rows] for name, column in everything.items()})
    assert_same(stack.rows(rows, ["paid"]), {"paid": everything["paid"][rows]})
    more, others = [dialogue(900, 3), dialogue(901, 2)], {"numbers": np.arange(4), "flags": np.ones(0, dtype=np.uint8)}
    stack.save(tmp_path / "own", more, others)
    save_file(joined([*kept, *more]) | others, tmp_path / "theirs")
    assert (tmp_path / "own").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_the_newest_turns_are_in_memory_and_blocks_of_whole_dialogues_on_disk():
    stack, _ = filled(100, 10, [3] * 7)
    (first, second) = sorted(stack._folder.iterdir())
    assert [sorted({int(n) for n in load_file(path)["seen"][:, 0]}) for path in (first, second)] == [
        [0, 1, 2],
        [3, 4, 5],
    ]
    assert len(stack) - stack._blocks[-1].last == 3
    assert not filled(100, 21, [3] * 7)[0]._folder


def test_a_block_is_removed_when_all_of_its_dialogues_have_made_room():
    stack, _ = filled(18, 10, [3] * 8)
    before = {path.name for path in stack._folder.iterdir()}
    assert before == {"0.safetensors", "9.safetensors"}
    stack.append(dialogue(8, 3))
    assert {path.name for path in stack._folder.iterdir()} == {"9.safetensors"}


def test_rows_that_are_not_there_are_refused():
    stack, _ = filled(100, 5, [3] * 7)
    for row in (-1, 21):
        with pytest.raises(IndexError, match="wanted rows from 0 to 20"):
            stack.rows([row])


@pytest.mark.slow
def test_the_folder_goes_with_the_stack():
    stack, _ = filled(100, 5, [3] * 7)
    folder = stack._folder
    assert list(folder.iterdir())
    del stack
    gc.collect()
    assert not folder.exists()


def test_a_full_disk_is_reported_and_loses_nothing(monkeypatch):
    def full(path, streams):
        raise OSError(errno.ENOSPC, "No space left on device")

    stack, kept = filled(100, 10, [3] * 6)
    monkeypatch.setattr(episode_stack, "write_streams", full)
    with pytest.raises(UserError, match=r"No space left on device; free some .*TMPDIR"):
        stack.append(dialogue(6, 3))
    monkeypatch.undo()
    kept.append(dialogue(6, 3))
    assert_same(stack.rows(range(len(stack))), joined(kept))
    stack.append(dialogue(7, 3))
    assert_same(stack.rows(range(len(stack))), joined([*kept, dialogue(7, 3)]))


@pytest.mark.parametrize("at_once", [1, 3, 1000])
def test_a_saved_file_is_split_into_its_dialogues(tmp_path, monkeypatch, at_once):
    monkeypatch.setattr(episode_stack, "AT_ONCE", at_once)
    wanted = [dialogue(number, number % 3 + 1) for number in range(7)]
    save_file(joined(wanted), tmp_path / "x")
    with safe_open(tmp_path / "x", "np") as file:
        slices = {name: file.get_slice(name) for name in wanted[0]}
        found = list(split_slices(slices, np.array([1, 2, 3, 1, 2, 3, 1])))
        with pytest.raises(ValueError, match="do not have the 12 turns"):
            next(split_slices(slices, np.array([12])))
    assert len(found) == 7
    for own, other in zip(found, wanted, strict=True):
        assert_same(own, other)
