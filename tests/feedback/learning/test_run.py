"""A night at work: what it keeps on disk."""

import json
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from rlhf_dialog.atomic_files import write_json
from rlhf_dialog.feedback.learning.run import Night
from rlhf_dialog.feedback.store.bot import NIGHT


def night_in(folder, save):
    return Night(SimpleNamespace(folder=folder), Mock(), Mock(), SimpleNamespace(save=save), Mock(), {"done": 0})


def test_what_is_saved_is_the_state_with_its_progress(tmp_path):
    night = night_in(tmp_path, lambda folder, state: write_json(folder / "state.json", state))
    night.save({"done": 2})
    night.save({"sums": {"loss": 1.5}})
    found = json.loads((tmp_path / NIGHT / "state.json").read_text())
    assert found == {"night": {"done": 2, "sums": {"loss": 1.5}}}


def test_a_save_that_fails_leaves_the_one_before(tmp_path):
    night = night_in(tmp_path, lambda folder, state: write_json(folder / "state.json", state))
    night.save({"done": 2})

    def killed(folder, state):
        (folder / "state.json").write_text("half")
        raise KeyboardInterrupt

    night.learner.save = killed
    with pytest.raises(KeyboardInterrupt):
        night.save({"done": 3})
    assert json.loads((tmp_path / NIGHT / "state.json").read_text())["night"] == {"done": 2}
