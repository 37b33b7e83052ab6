"""EpisodeStack against a plain list of dialogues, and its files as safetensors reads them."""

from random import Random

import numpy as np
import pytest
from safetensors.numpy import load_file

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.policies.episode_stack import EpisodeStack
from rlhf_dialog.task_oriented.policies.replay import Replay


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


@pytest.mark.parametrize("seed", range(20))
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
    stack.save(tmp_path / "saved", more, others)
    assert_same(load_file(tmp_path / "saved"), joined([*kept, *more]) | others)


def on_disk(stack):
    return [] if stack._disk is None else [n for (n,) in stack._disk.execute("SELECT number FROM dialogues")]


def test_the_newest_turns_are_in_memory_and_older_dialogues_on_disk_until_they_make_room():
    assert on_disk(filled(100, 10, [3] * 7)[0]) == [0, 1, 2, 3]
    assert on_disk(filled(100, 21, [3] * 7)[0]) == []
    assert on_disk(filled(18, 10, [3] * 8)[0]) == [2, 3, 4]
    assert Replay(10).stack.in_memory == 200_000  # turns, unless it is told otherwise


def test_rows_that_are_not_there_and_other_columns_are_refused():
    stack, _ = filled(100, 5, [3] * 7)
    for row in (-1, 21):
        with pytest.raises(IndexError, match="wanted rows from 0 to 20"):
            stack.rows([row])
    with pytest.raises(UserError, match=r"\['good', 'paid', 'seen'\].*\['paid'\]"):
        stack.append({"paid": np.ones(2)})


def test_a_full_disk_is_reported_and_loses_nothing():
    stack, kept = filled(10**6, 10, [3] * 6)

    def fill():
        while len(kept) < 400:
            kept.append(dialogue(len(kept), 3))
            stack.append(kept[-1])

    stack._disk.execute("PRAGMA max_page_count = 1")  # SQLite then says that the disk is full
    with pytest.raises(UserError, match=r"disk is full; free some .*TMPDIR"):
        fill()
    assert_same(stack.rows(range(len(stack))), joined(kept))
    stack._disk.execute("PRAGMA max_page_count = 100000")
    fill()
    assert_same(stack.rows(range(len(stack))), joined(kept))
