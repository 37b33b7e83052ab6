"""What a run can do without is dropped with one warning, and closed."""

import pytest

from rlhf_dialog.errors import SignalExit
from rlhf_dialog.runs.optional_outputs import OptionalOutputs


class Thing:
    def __init__(self, closed):
        self.closed = closed

    def close(self):
        self.closed.append(self)


def test_what_fails_is_closed_and_warned_of_once(caplog):
    things, closed = OptionalOutputs(), []
    things.add("one", lambda: Thing(closed))
    things.add("two", lambda: Thing(closed))
    things.add("three", lambda: 1 / 0)
    for _ in range(2):
        things.use("one", lambda _: 1 / 0)
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "three has failed and is not used any more",
        "one has failed and is not used any more",
    ]
    assert (list(things.others), len(closed)) == (["two"], 1)
    things.close()
    assert len(closed) == 2


def test_a_signal_passes():
    things = OptionalOutputs()
    things.add("one", lambda: Thing([]))

    def leave(_):
        raise SignalExit(143)

    with pytest.raises(SignalExit):
        things.use("one", leave)
