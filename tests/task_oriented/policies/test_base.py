"""The protocol: who gets streams, and what a stream depends on."""

import numpy as np
import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.policies.base import PolicyFactory, PolicySpec, choose, stream

OBSERVATIONS, MASKS = np.zeros((2, 3), np.float32), np.array([[False, True], [True, True]])


class First:
    def act(self, observations, masks, deterministic):
        return masks.argmax(axis=1), {}


class Drawing:
    def act(self, observations, masks, deterministic, streams):
        return np.array([own.randrange(100) for own in streams]), {"deterministic": np.array([deterministic] * 2)}


def test_a_policy_that_draws_nothing_gets_no_streams():
    assert choose(First(), OBSERVATIONS, MASKS, False, [])[0].tolist() == [1, 0]


def test_a_policy_that_draws_gets_one_stream_for_each_dialogue():
    streams = [stream(0, 5, 1), stream(0, 6, 1)]
    actions, extras = choose(Drawing(), OBSERVATIONS, MASKS, True, streams)
    assert actions.tolist() == [stream(0, 5, 1).randrange(100), stream(0, 6, 1).randrange(100)]
    assert extras["deterministic"].all()


def test_a_stream_is_that_of_one_turn_of_one_dialogue_of_one_seed():
    keys = [(0, 5, 1), (0, 5, 2), (0, 6, 1), (1, 5, 1)]
    assert len({stream(*key).random() for key in keys}) == 4
    assert stream(0, 5, 1).random() == stream(0, 5, 1).random()


def test_a_registered_class_is_built_with_its_setting_and_arguments():
    @PolicyFactory.register("of a test")
    class Own(First):
        def __init__(self, setting, size=1):
            self.setting, self.size = setting, size

    try:
        setting = PolicySpec(3, 2)
        built = PolicyFactory.create("of a test", {"setting": setting, "size": 4})
        assert (built.setting, built.size) == (setting, 4)
        with pytest.raises(UserError, match="did you mean 'size'"):
            PolicyFactory.create("of a test", {"setting": setting, "sise": 4})
    finally:
        del PolicyFactory.classes["of a test"]
