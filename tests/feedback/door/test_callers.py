"""Who is who: keys, users of gateways, visitors, and the owner of the machine."""

import pytest

from rlhf_dialog.feedback.door.callers import Caller, Callers
from rlhf_dialog.feedback.door.requests import ApiError
from rlhf_dialog.feedback.store.people import People

ANN, BEN = {"X-OpenWebUI-User-Id": "ann"}, {"X-OpenWebUI-User-Id": "ben"}


@pytest.fixture
def people(bot):
    return People.load(bot.folder)


def with_key(key, headers=()):
    return {"Authorization": f"Bearer {key}", **dict(headers)}


def refusal(callers, headers, user=None):
    with pytest.raises(ApiError) as error:
        callers.find(headers, user)
    return error.value.status


def test_while_nobody_has_a_key_the_owner_of_the_machine_calls(people, store):
    callers = Callers(people, store, "me")
    assert callers.find({}) == callers.find(with_key("none")) == Caller("me", None, "owner")
    ann, ben = callers.find(ANN), callers.find(BEN)
    assert ann.person == ben.person == "me"
    assert None not in (ann.user, ben.user)
    assert ann.user != ben.user
    assert callers.find({}, "ann") == ann
    assert "ann" not in str(ann)
    assert refusal(callers, ANN, "ben") == refusal(callers, {}, "x" * 999) == 400
    assert refusal(Callers(people, store, None), {}) == 401  # not on this machine alone


def test_from_the_first_key_on_a_wrong_one_is_refused(people, store):
    key = people.invite("ann", "user")
    callers = Callers(people, store, "me")
    found = callers.find(with_key(key))
    assert (found.user, found.role) == (None, "user")
    assert found == callers.find({"Authorization": f"bearer {key}"})
    for headers in ({}, with_key("none"), with_key(""), with_key(key[:-1]), {"Authorization": key}):
        assert refusal(callers, headers) == 401
    visited = Callers(people, store, "me", visitors=True)
    assert visited.find({}) == Caller("unknown", None, "visitor")
    assert refusal(visited, with_key("none")) == 401
    assert refusal(visited, ANN) == 400
    people.revoke("ann")
    assert refusal(callers, with_key(key)) == refusal(callers, {}) == 401  # and nobody becomes the owner again


def test_only_a_gateway_names_users(people, store):
    gateway, other, teacher = (
        people.invite(name, role) for name, role in (("g", "gateway"), ("h", "gateway"), ("t", "teacher"))
    )
    unknown, known = Callers(people, store, "me"), Callers(people, store, "me", knows_users=True)
    assert refusal(unknown, with_key(teacher, ANN)) == refusal(unknown, with_key(teacher), "ann") == 400
    assert unknown.find(with_key(teacher)).role == "teacher"
    ann, ben, third = (unknown.find(with_key(*one)) for one in ((gateway, ANN), (gateway, BEN), (other, ANN)))
    assert {one.person for one in (ann, ben, third)} == {"unknown"}
    assert len({ann.user, ben.user, third.user}) == 3  # another gateway's ann is somebody else
    assert unknown.find(with_key(gateway)) == Caller("unknown", None, "gateway")
    ann, ben, third = (known.find(with_key(*one)) for one in ((gateway, ANN), (gateway, BEN), (other, ANN)))
    assert len({ann.person, ben.person, third.person, "unknown"}) == 4
    assert {one.user for one in (ann, ben, third)} == {None}


def test_a_stored_dialogue_may_be_that_of_its_user_and_of_no_other(people, store):
    def stored(caller):
        return store.hash_person(caller.person), caller.user

    before = Callers(people, store, "me")
    owner, owners_ann = stored(before.find({})), stored(before.find(ANN))
    assert all(before.may_be(name, *one) for name in ("ann", "ben") for one in (owner, owners_ann))
    gateway, other, teacher = (
        people.invite(name, role) for name, role in (("g", "gateway"), ("h", "gateway"), ("t", "teacher"))
    )
    unknown, known = Callers(people, store, "me"), Callers(people, store, "me", knows_users=True)
    anns = [stored(one.find(with_key(key, ANN))) for one in (unknown, known) for key in (gateway, other)]
    assert len(set(anns)) == 4
    for callers in (unknown, known):  # however it is served now
        assert all(callers.may_be("ann", *one) for one in (*anns, owner, owners_ann))
        assert not any(callers.may_be("ben", *one) for one in (*anns, owners_ann))
        assert callers.may_be("ben", *stored(callers.find(with_key(teacher))))  # a chat page with a key of one person
        assert callers.may_be("ben", *stored(callers.find(with_key(gateway))))  # which named nobody
