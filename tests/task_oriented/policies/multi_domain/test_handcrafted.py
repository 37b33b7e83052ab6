import numpy as np
import pytest
from small_world import REAL, needs_multiwoz, small_world

from rlhf_dialog.task_oriented.domains import open_domain
from rlhf_dialog.task_oriented.policies.multi_domain.handcrafted import HandcraftedMulti
from rlhf_dialog.task_oriented.policies.sampling.measures import collect_numbers
from rlhf_dialog.task_oriented.policies.sampling.sampler import run_dialogues
from rlhf_dialog.task_oriented.world.acts import parse_acts
from rlhf_dialog.task_oriented.world.multi_domain.act_level import MultiActLevel
from rlhf_dialog.task_oriented.world.multi_domain.actions import MultiActions
from rlhf_dialog.task_oriented.world.multi_domain.state import DialogueState

WORLD = small_world()
POLICY, ACTIONS = HandcraftedMulti(WORLD), MultiActions(WORLD)


def chosen(*turns):
    """The action after these turns of system and user."""
    state = DialogueState(WORLD)
    for system, user in turns:
        state.update(parse_acts(system), parse_acts(user))
    observation, mask = POLICY.layout.encode(state, None, 0.0), ACTIONS.mask(state)
    return ACTIONS.names[POLICY.act(observation[None], mask[None])[0][0]]


OFFERED = ("recommend(hotel-name=granite house)", "")
BOOKING = "inform(hotel-book stay=1) inform(hotel-book day=friday) inform(hotel-book people=2)"


@pytest.mark.parametrize(
    ("turns", "action"),
    [
        ([("", "hello()")], "reqmore"),
        ([("", "inform(hotel-area=north)")], "hotel_recommend"),
        ([("", "inform(hotel-stars=9)")], "hotel_nooffer"),
        ([("", "inform(hotel-area=north) request(hotel-phone)")], "hotel_inform"),
        ([("", "inform(hotel-area=north)"), (OFFERED[0], "inform(hotel-stars=2)")], "hotel_request_booking"),
        ([("", "inform(hotel-area=north)"), (OFFERED[0], "inform(hotel-book day=dontcare)")], "reqmore"),
        ([("", "inform(hotel-area=north)"), (OFFERED[0], BOOKING)], "hotel_book"),
        ([("", "inform(train-day=friday)")], "train_request"),
        ([("", "inform(taxi-departure=a)")], "taxi_request"),
        ([("", "inform(taxi-departure=a) inform(taxi-destination=b) inform(taxi-leaveAt=09:00)")], "taxi_book"),
        ([("", "request(police-phone)")], "police_inform"),
        ([("", "request(police-phone)"), ("", "inform(hotel-area=north)")], "hotel_recommend"),
    ],
)
def test_its_rules(turns, action):
    assert chosen(*turns) == action


def succeeds(domain, number):
    found = collect_numbers(run_dialogues(HandcraftedMulti(domain), lambda: MultiActLevel(domain), 1, range(number)))
    return {name: np.nanmean(values) for name, values in found.items()}


def test_it_succeeds():
    found = succeeds(WORLD, 200)
    assert found["success"] >= 0.95
    assert found["book_rate"] >= 0.95
    assert found["turns"] < 6


@needs_multiwoz
def test_it_succeeds_on_the_real_data():
    found = succeeds(open_domain("multiwoz", REAL), 300)
    assert found["success"] >= 0.95
    assert found["inform_recall"] >= 0.95
