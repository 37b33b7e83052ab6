import numpy as np

from rlhf_dialog.task_oriented.policies.base import PolicySpec, stream
from rlhf_dialog.task_oriented.policies.random import RandomPolicy


def test_every_allowed_action_is_equally_likely_and_no_other_is_drawn():
    masks = np.tile([True, False, True, True], (3000, 1))
    streams = [stream(0, number, 0) for number in range(3000)]
    actions, extras = RandomPolicy(PolicySpec(1, 4)).act(np.zeros((3000, 1), np.float32), masks, False, streams)
    counts = np.bincount(actions, minlength=4)
    assert counts[1] == 0
    assert all(abs(count - 1000) < 4 * (3000 * 2 / 9) ** 0.5 for count in counts[[0, 2, 3]])  # four deviations
    np.testing.assert_allclose(extras["logprobs"], np.log(1 / 3), rtol=1e-6)
