import numpy as np
import pytest

from rlhf_dialog.task_oriented.policies.base import PolicySpec, stream
from rlhf_dialog.task_oriented.policies.handcrafted import Handcrafted, HandcraftedMulti, RandomPolicy
from rlhf_dialog.task_oriented.policies.sampling.measures import collect_numbers
from rlhf_dialog.task_oriented.policies.sampling.sampler import run_dialogues
from rlhf_dialog.task_oriented.world.act_level import ActLevel
from rlhf_dialog.task_oriented.world.multi_domain.act_level import MultiActLevel
from rlhf_dialog.task_oriented.world.summary import SummaryActions, summarise
from rlhf_dialog.task_oriented.world.tracker import Belief
from tests.parts.several_policies import seen
from tests.parts.small_domain import small_domain
from tests.parts.small_world import small_world

DOMAIN = small_domain()
POLICY = Handcrafted(DOMAIN)


def choice(tea=None, area=None, **parts) -> str:
    belief = Belief({"tea": tea or {}, "area": area or {}, "name": {}}, **parts)
    summary = summarise(DOMAIN, belief)
    actions = SummaryActions(DOMAIN)
    observation, mask = POLICY.layout.encode(belief, summary), actions.mask(belief, summary)
    (action,), extras = POLICY.act(observation[None], mask[None])
    assert mask[action]
    assert extras == {}
    return actions.names[action]


SURE = {"tea": {"green": 0.9}, "area": {"north": 0.9}}


@pytest.mark.parametrize(
    ("tea", "asks"),
    [
        ({}, "request_tea"),
        ({"green": 0.29}, "request_tea"),
        ({"green": 0.31}, "confirm_tea"),
        ({"green": 0.5, "black": 0.2}, "confirm_tea"),
        ({"green": 0.5, "black": 0.35}, "select_tea"),
        ({"green": 0.59, "black": 0.4}, "select_tea"),
        ({"green": 0.65, "black": 0.3}, "confirm_tea"),
        ({"green": 0.81, "black": 0.1}, "request_area"),
        ({"dontcare": 0.7}, "confirm_tea"),
    ],
)
def test_what_is_unsure_is_confirmed_and_what_is_open_requested(tea, asks):
    assert choice(tea) == asks


def test_an_offer_when_nothing_is_left_to_ask_then_a_waiting_request_and_what_the_mask_allows():
    assert choice(**SURE) == "inform"
    assert choice({"white": 0.9}) == "inform"  # nothing fits
    assert choice({"black": 0.9}) == "inform"  # both are in the south
    assert choice({"dontcare": 0.9}, {"south": 0.9}) == "inform"
    waiting = {"requested": {"phone": 0.9}, "method": {"byconstraints": 1.0}, "offered": "ada"}
    assert choice(**SURE, **waiting, offer_happened=True) == "inform"  # the method forbids inform_byname
    assert choice(**SURE, **(waiting | {"method": {"byname": 0.9}}), offer_happened=True) == "inform_byname"
    assert choice(method={"byalternatives": 1.0}) == "request_tea"  # nothing was offered yet
    assert choice(**SURE, method={"byalternatives": 1.0}) == "request_tea"


@pytest.mark.parametrize(
    ("parts", "action"),
    [
        ({"method": {"byname": 1.0}, "offered": "ada"}, "inform_byname"),
        ({"method": {"byalternatives": 1.0}, "offered": "ada"}, "inform_alternatives"),
        ({"method": {"finished": 0.9}}, "bye"),
        ({"method": {"byconstraints": 1.0}, "discourse_act": {"thankyou": 0.8}, "offered": "ada"}, "reqmore"),
        ({"method": {"byconstraints": 1.0}, "discourse_act": {"ack": 0.8}, "offered": "ada"}, "reqmore"),
    ],
)
def test_what_the_user_wants_comes_first(parts, action):
    assert choice(**SURE, **parts) == action


@pytest.mark.parametrize(("rate", "success", "turns"), [(0.0, 0.97, 7), (0.15, 0.9, 10), (0.3, 0.82, 11)])
def test_the_restaurant_domain(rate, success, turns):
    environment = ActLevel("restaurant", rate)
    found = collect_numbers(run_dialogues(Handcrafted(environment.domain), lambda: environment, 1, range(200), 1))
    assert found["success"].mean() > success
    assert found["turns"].mean() < turns


WORLD = small_world()
RULES = HandcraftedMulti(WORLD)


def chosen(*turns):
    """The action after these turns of system and user."""
    observation, mask = seen(WORLD, *turns)
    return RULES.layout.names[RULES.act(observation[None], mask[None])[0][0]]


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


def test_it_succeeds():
    found = collect_numbers(run_dialogues(RULES, lambda: MultiActLevel(WORLD), 1, range(200)))
    assert found["success"].mean() >= 0.95
    assert np.nanmean(found["book_rate"]) >= 0.95
    assert found["turns"].mean() < 6


def test_every_allowed_action_is_equally_likely_and_no_other_is_drawn():
    masks = np.tile([True, False, True, True], (3000, 1))
    streams = [stream(0, number, 0) for number in range(3000)]
    actions, extras = RandomPolicy(PolicySpec(1, 4)).act(np.zeros((3000, 1), np.float32), masks, False, streams)
    counts = np.bincount(actions, minlength=4)
    assert counts[1] == 0
    assert all(abs(count - 1000) < 4 * (3000 * 2 / 9) ** 0.5 for count in counts[[0, 2, 3]])  # four deviations
    np.testing.assert_allclose(extras["logprobs"], np.log(1 / 3), rtol=1e-6)
