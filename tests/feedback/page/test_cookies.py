"""Ids are those that the server has issued."""

from rlhf_dialog.feedback.page.cookies import People, Sessions, SignedCookie, cookies_of

PERSON = "ab" * 16


def test_a_signature_is_of_one_cookie_and_one_secret():
    value = SignedCookie("a", "s").signed(PERSON)
    assert SignedCookie("a", "s").read({"a": value}) == PERSON
    assert SignedCookie("b", "s").read({"b": value}) is None
    assert SignedCookie("a", "t").read({"a": value}) is None
    assert SignedCookie("a", "s").read({"a": f"{value}0"}) is None
    assert SignedCookie("a", "s").read({"a": "\u0660" * 32}) is None


def test_an_id_of_before_ids_were_signed_is_signed_where_something_is_stored_of_it():
    people = People(SignedCookie("a", "s", was_issued=PERSON.__eq__))
    scope = {"headers": [(b"cookie", f"a={PERSON}".encode())]}
    renewed, new = people.with_id(scope, cookies_of(scope))
    assert people.cookie.read(cookies_of(renewed)) == PERSON
    assert new == people.cookie.issued(PERSON, False)
    assert people.with_id(renewed, cookies_of(renewed))[1] == []
    chosen = {"headers": [(b"cookie", f"a={'cd' * 16}".encode())]}
    assert people.cookie.read(cookies_of(people.with_id(chosen, cookies_of(chosen))[0])) not in (None, "cd" * 16)


def test_a_page_is_the_first_person_s(monkeypatch):
    monkeypatch.setattr(Sessions, "MOST", 2)
    sessions = Sessions()
    assert sessions.belongs("tab", None)
    sessions.take("tab", "ann")
    assert [sessions.belongs("tab", one) for one in ("ann", "ben", None)] == [True, False, False]
    for other in ("1", "2"):
        sessions.take(other, "ben")
    assert len(sessions._people) == 2
