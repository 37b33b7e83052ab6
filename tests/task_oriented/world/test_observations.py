import numpy as np
import pytest
from small_domain import small_domain

from rlhf_dialog.task_oriented.domains import load_domain
from rlhf_dialog.task_oriented.world.observations import Layout
from rlhf_dialog.task_oriented.world.summary import summarise
from rlhf_dialog.task_oriented.world.tracker import Belief

DOMAIN = small_domain()


def test_the_size_follows_from_the_domain():
    """5 + 4 values with dontcare and none, 6 methods, 6 discourse acts, 4 requestable, 2 flags, 5 counts for each of 2 slots."""
    assert Layout(DOMAIN).size == 5 + 4 + 6 + 6 + 4 + 2 + 10
    assert Layout(load_domain("restaurant")).size == (26 + 7 + 5) + 6 + 6 + 8 + 2 + 15


def test_a_belief_by_hand():
    belief = Belief(
        {"tea": {"black": 0.5, "dontcare": 0.25}, "area": {}, "name": {}},
        {"byname": 0.75},
        {"thankyou": 0.5, "none": 0.5},
        {"phone": 0.5},
        offer_happened=True,
    )
    vector = Layout(DOMAIN).encode(belief, summarise(DOMAIN, belief))
    assert vector.dtype == np.float32
    tea, area = [0, 0.5, 0, 0.25, 0.25], [0, 0, 0, 1]
    method, discourse = [0.25, 0, 0.75, 0, 0, 0], [0.5, 0, 0, 0, 0, 0.5]
    requested, flags = [0, 0.5, 0, 0], [1, 0]
    counts = [0, 0, 1, 0, 1 * 0, 0, 0, 1, 0, 0]  # black: dot and eve, both in the south
    assert vector.tolist() == pytest.approx([*tea, *area, *method, *discourse, *requested, *flags, *counts])
