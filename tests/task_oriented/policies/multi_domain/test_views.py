import numpy as np
import pytest

from rlhf_dialog.task_oriented.policies.multi_domain.views import EpisodeBuffer, Views
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
    users = ["inform(restaurant-food=thai)"] * 2 + ["inform(hotel-area=north)"]
    whole = dialogue(TWO, users, ["restaurant_recommend", "restaurant_inform", "hotel_recommend"], [-1.0, -2.0, 17.0])
    found = {view.name: part for view, part in Views(setting_of(TWO), "x").split(whole)}
    assert found["restaurant"].rewards.tolist() == [-1, 15]
    assert found["hotel"].rewards.tolist() == [17]
    assert (found["restaurant"].total_reward, len(found["hotel"])) == (14, 1)
    assert whole.rewards.tolist() == [-1, -2, 17]
    own = Views(setting_of(TWO), "x").by_name["hotel"].seen(found["hotel"])
    assert MultiLayout(TWO.only(["hotel"])).names[own.actions[0]] == "hotel_recommend"
    assert own.observations.shape == (1, MultiLayout(TWO.only(["hotel"])).size)


def test_a_policy_sees_the_turns_from_a_given_one_on():
    users = ["inform(hotel-area=north)", "inform(hotel-stars=2)", "inform(restaurant-food=thai)"]
    whole = dialogue(TWO, users, ["hotel_recommend", "reqmore", "restaurant_recommend"], [-1.0, -2.0, 17.0])
    view, part = next(found for found in Views(setting_of(TWO), "x").split(whole) if found[0].name == "hotel")
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
