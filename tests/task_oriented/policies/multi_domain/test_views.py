import json
from math import log

import numpy as np
import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains import MultiDomain
from rlhf_dialog.task_oriented.domains.services import Chances, DomainService
from rlhf_dialog.task_oriented.policies.multi_domain.abstraction import (
    SlotMapping,
    make_abstraction,
    normalised_entropy,
    read_abstraction,
    write_abstraction,
)
from rlhf_dialog.task_oriented.policies.multi_domain.topics import Topics
from rlhf_dialog.task_oriented.policies.multi_domain.views import EpisodeBuffer, Views
from rlhf_dialog.task_oriented.world.acts import parse_acts
from rlhf_dialog.task_oriented.world.multi_domain.actions import MultiLayout
from tests.parts.several_policies import THREE, TWO, dialogue, piece, seen, setting_of
from tests.parts.small_world import small_world

WORLD = small_world()
HOTEL = [
    ("", "inform(hotel-area=north) inform(hotel-stars=dontcare)"),
    ("recommend(hotel-name=granite house)", "request(hotel-phone) inform(hotel-book day=friday)"),
]


@pytest.mark.parametrize("turns", [HOTEL[:1], HOTEL])
@pytest.mark.parametrize("said", ["hotel_recommend", "reqmore", "restaurant_inform"])
def test_a_view_is_what_there_is_to_see_where_the_other_domains_are_not(turns, said):
    names = MultiLayout(WORLD).names
    elsewhere = [("", "inform(restaurant-food=thai)"), ("", "inform(train-day=friday)")]
    observation, mask = seen(WORLD, *elsewhere, *turns, action=names.index(said), turn=0.35)
    view = Views(setting_of(WORLD), "x").by_name["hotel"]
    own = WORLD.only(["hotel"])
    last = MultiLayout(own).names.index(said) if said in MultiLayout(own).names else None
    alone, allowed = seen(own, *turns, action=last, turn=0.35)
    np.testing.assert_array_equal(observation[view.columns], alone)
    np.testing.assert_array_equal(mask[view.actions], allowed)
    assert [names[number] for number in view.actions] == list(MultiLayout(own).names)
    setting = view.setting
    assert (setting.num_features, setting.num_actions) == (len(alone), len(allowed))
    assert list(setting.domain.services) == ["hotel"]


def test_the_active_domain_is_the_one_of_which_the_user_spoke_last():
    users = ["", "inform(restaurant-food=thai)", "inform(hotel-area=north)", "inform(attraction-area=north)"]
    observations = np.stack([seen(THREE, ("", user))[0] for user in users])
    views = Views(setting_of(THREE), "x")
    rows = {view.name: rows.tolist() for view, rows in views.groups(observations)}
    assert rows == {"attraction": [0, 3], "hotel": [2], "restaurant": [1]}  # the first one where there is none


def test_each_domain_gets_its_turns_and_the_outcome():
    users = ["inform(hotel-area=north)", "inform(hotel-stars=2)", "inform(restaurant-food=thai)"]
    whole = dialogue(TWO, users, ["hotel_recommend", "reqmore", "restaurant_recommend"], [-1.0, -2.0, 17.0])
    (view, part), (_, last) = Views(setting_of(TWO), "x").split(whole)
    assert (view.name, part.total_reward, last.rewards.tolist()) == ("hotel", 14, [17])
    assert whole.rewards.tolist() == [-1, -2, 17]
    later = view.seen(part, 1)
    np.testing.assert_array_equal(later.observations, whole.observations[1:2, view.columns])
    np.testing.assert_array_equal(later.last_observation, whole.last_observation[view.columns])
    assert (later.start, later.rewards.tolist(), later.ended) == (1, [15], True)


def test_pieces_are_held_back_until_the_end_and_saved(tmp_path):
    extras = {"weights": np.arange(6, dtype=np.float32).reshape(3, 2)}
    whole = dialogue(TWO, ["inform(hotel-area=north)"] * 3, ["reqmore"] * 3, [-1.0, -1.0, 4.0], 7, extras)
    pieces = EpisodeBuffer()
    assert pieces.join_episode(piece(whole, 0, 1)) is None
    assert pieces.join_episode(piece(whole, 1, 2)) is None
    alone = EpisodeBuffer()
    alone.join_episode(piece(whole, 0, 1))
    assert alone.join_episode(piece(whole, 2, 3)).start == 2  # the turn between them was not seen
    pieces.save(tmp_path)
    again = EpisodeBuffer()
    again.load(tmp_path)
    for one in (pieces, again):
        found = one.join_episode(piece(whole, 2, 3))
        for name in ("observations", "masks", "actions", "rewards", "values", "logprobs"):
            np.testing.assert_array_equal(getattr(found, name), getattr(whole, name))
        np.testing.assert_array_equal(found.extras["weights"], extras["weights"])
        assert (found.start, found.terminated, set(found.extras)) == (0, True, {"weights"})


EVEN = Chances({"a": 1, "b": 1})


def tea_and_rooms():
    """Entities whose entropies are in the test below."""
    tea = [{"name": f"tea {n}", "kind": "xxyy"[n], "size": "xyzz"[n], "phone": str(n), "late": "no"} for n in range(4)]
    rooms = [
        {"name": f"room {n}", "view": "xxxy"[n], "floor": "xxyy"[n], "bath": "no", "fee": "xy"[n % 2]} for n in range(4)
    ]
    shares = {"name": 1.0, "phone": 0.5, "late": 0.5, "kind": 0.1}
    services = {
        "tea": DomainService("tea", "name", {"kind": EVEN, "name": EVEN, "size": EVEN}, shares, entities=tuple(tea)),
        "rooms": DomainService(
            *("rooms", "name", {"view": EVEN, "floor": EVEN, "bath": EVEN, "name": EVEN}, {"fee": 0.5}),
            booking={"nights": Chances({"1": 3, "2": 1}), "day": Chances({"x": 1, "y": 1})},
            entities=tuple(rooms),
        ),
    }
    return MultiDomain("two", services, Chances({("tea",): 1, ("rooms",): 1}))


def test_the_entropy_by_hand():
    assert normalised_entropy([2, 2]) == pytest.approx(log(2) / 2)
    assert normalised_entropy([1, 3]) == pytest.approx((0.25 * log(4) + 0.75 * log(4 / 3)) / 2)
    assert normalised_entropy([5]) == 0
    assert normalised_entropy([]) == 0
    assert normalised_entropy([1, 1, 0]) == normalised_entropy([1, 1])


def test_slots_are_ranked_written_and_read_again(tmp_path):
    found = make_abstraction(tea_and_rooms())
    # tea: kind log 2 / 2 = .3466; size (2 / 4 log 4 + 1 / 2 log 2) / 3 = .3466: a tie, in the order of the file
    # phone log 4 / 4 = .3466, late 0; rooms: floor .3466, view .2812, bath 0; nights .2812, day .3466
    assert found["tea"] == {"name": "name", "kind": "slot0", "size": "slot1", "phone": "info0", "late": "info1"}
    slots = {"name": "name", "floor": "slot0", "view": "slot1", "bath": "slot2"}
    assert found["rooms"] == {**slots, "fee": "info0", "book day": "book0", "book nights": "book1"}
    domain, path = tea_and_rooms(), tmp_path / "slots.json"
    write_abstraction(path, make_abstraction(domain))
    assert read_abstraction(path, domain) == make_abstraction(domain)
    mine = {"tea": {"kind": "style"}, "rooms": {"view": "style"}}
    path.write_text(json.dumps(mine), encoding="utf-8")
    assert read_abstraction(path, domain) == mine


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[1]", "is not an abstraction"),
        ('{"tee": {}}', "'tee' is unknown; did you mean 'tea'"),
        ('{"tea": {"kinds": "slot0"}}', "'kinds' is unknown; did you mean 'kind'"),
        ('{"tea": {"kind": "x", "size": "x"}}', "tea has 'x' twice"),
        ('{"tea": {"kind": 1}}', "tea has 1"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path, content, said):
    path = tmp_path / "slots.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=said):
        read_abstraction(path, tea_and_rooms())


def bridged(abstraction, member, other, *turns, action=None):
    """The member's features that are not 0 when it looks at the other domain."""
    views = Views(setting_of(TWO), "x").by_name
    bridge = SlotMapping(abstraction, views[member], views[other])
    row = bridge.observations(seen(TWO, *turns, action=action, turn=0.5)[0][None])[0]
    layout = MultiLayout(TWO.only([member]))
    names = {**{n: f for f, n in layout.places[member].items()}, layout.turn: "turn"}
    names |= {layout.last_action.start + n: name for n, name in enumerate(layout.names)}
    return {names[int(n)] for n in np.flatnonzero(row)}, bridge


def test_a_member_sees_another_domain_as_its_own():
    mine = {"restaurant": {"food": "a", "area": "b", "book day": "day"}, "hotel": {"stars": "a", "book day": "day"}}
    turns = [("", "inform(hotel-stars=2) inform(hotel-area=dontcare) inform(hotel-book day=friday)")]
    number = MultiLayout(TWO).names.index("hotel_recommend")
    found, bridge = bridged(mine, "restaurant", "hotel", *turns, action=number)
    flags = {"current", "spoken_of", "ready", "few"}
    assert found == {*flags, "known food", "booking day", "restaurant_recommend", "turn"}
    names, own = MultiLayout(TWO).names, MultiLayout(TWO.only(["restaurant"])).names
    pairs = {names[whole]: own[number] for whole, number in bridge.actions.tolist()}
    assert pairs["hotel_book"] == "restaurant_book"
    assert pairs["reqmore"] == "reqmore"
    assert len(pairs) == len(own)
    # and its own domain as it is
    observation = seen(TWO, ("", "inform(hotel-stars=2) request(hotel-phone)"), turn=0.25)[0]
    view = Views(setting_of(TWO), "x").by_name["hotel"]
    bridge = SlotMapping({}, view, view)
    np.testing.assert_array_equal(bridge.observations(observation[None])[0], observation[view.columns])
    assert bridge.actions[:, 0].tolist() == view.actions.tolist()


TOWN = small_world().only(["restaurant", "hotel", "train"])
NAMES = "hotel, restaurant or train"


def talk(*turns, **args):
    """The topic manager after these turns, and what it said last."""
    topics = Topics(TOWN, **args)
    said = topics.begin()
    for turn in turns:
        said = topics.hear(turn)
    return topics, said


def test_it_greets_asks_which_topic_and_ends_with_a_goodbye():
    assert talk()[1] == f"Hello! I can help you with {NAMES}. What are you looking for?"
    assert talk("hi there")[1] == f"Hello! Please name one of these: {NAMES}."
    for said in ("hm", "in the north", "at 09:00"):  # several have a north, and a number may be anybody's
        assert talk(said)[1] == f"I am sorry, I did not understand that. Please name one of these: {NAMES}."
    topics, said = talk("a hotel and a train")
    assert (topics.topic, said) == ("", "Is it about hotel or train? We can do one after the other.")
    assert topics.hear("the hotel") == ""
    assert topics.hear("that is all, Bye!") == "Goodbye!"
    assert topics.is_over


@pytest.mark.parametrize(
    ("turns", "topic"),
    [
        (["I need a hotel"], "hotel"),
        (["Any RESTAURANTS around?"], "restaurant"),
        (["something nordic, please"], "restaurant"),  # only restaurants are nordic
        (["in the north"], ""),  # hotels are in the north too
        (["I need a hotel", "for 4 people", "in the north"], "hotel"),
        (["I need a hotel", "is there nordic food?"], "hotel"),  # a value does not change the topic
        (["I need a hotel", "and a train then"], "train"),
        (["I need a hotel", "a hotel near a restaurant"], "hotel"),
        (["trainers"], ""),
        (["somewhere for dinner"], "restaurant"),
    ],
)
def test_words_decide_whose_policy_speaks(turns, topic):
    topics, said = talk(*turns, words={"restaurant": ["dinner"]})
    assert topics.topic == topic
    assert (said == "") == bool(topic)


def test_acts_decide_too():
    topics, said = talk(parse_acts("inform(train-day=friday)"))
    assert (topics.topic, said) == ("train", "")
    assert topics.hear(parse_acts("request(hotel-phone)")) == ""
    assert topics.topic == "hotel"
    assert topics.hear(parse_acts("affirm()")) == ""
    assert topics.topic == "hotel"
    assert topics.hear(parse_acts("bye()")) == "Goodbye!"
    assert (topics.is_over, topics.topic) == (True, "")


def test_it_hangs_up_after_the_attempts_and_a_topic_begins_them_again():
    topics, _ = talk("hm", "hm")
    assert not topics.is_over
    assert topics.hear("hm").endswith("Goodbye!")
    assert topics.is_over
    assert talk("hm", attempts=1)[0].is_over
    assert not talk("hm", "hm", "train", attempts=3)[0].is_over
    assert topics.begin().startswith("Hello!")
    assert not topics.is_over


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"restaurants": ["dinner"]}, "'restaurants' is unknown; did you mean 'restaurant'"),
        ({"restaurant": "dinner"}, "'dinner' for 'restaurant'"),
        ({"restaurant": [" "]}, r"\[' '\] for 'restaurant'"),
    ],
)
def test_a_mistake_in_the_words_is_named(words, said):
    with pytest.raises(UserError, match=said):
        talk("dinner", words=words)
