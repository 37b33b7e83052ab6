"""Ids are those that the server has issued."""

from rlhf_dialog.feedback.page.request_filter import Sessions, SignedCookie

PERSON = "ab" * 16


def test_a_signature_is_of_one_cookie_and_one_secret():
    value = SignedCookie("a", "s").sign(PERSON)
    assert SignedCookie("a", "s").read({"a": value}) == PERSON
    assert SignedCookie("b", "s").read({"b": value}) is None
    assert SignedCookie("a", "t").read({"a": value}) is None
    assert SignedCookie("a", "s").read({"a": f"{value}0"}) is None
    assert SignedCookie("a", "s").read({"a": "\u0660" * 32}) is None


def test_a_page_is_the_first_person_s(monkeypatch):
    monkeypatch.setattr(Sessions, "MOST", 2)
    sessions = Sessions()
    assert sessions.belongs("tab", None)
    sessions.take("tab", "ann")
    assert [sessions.belongs("tab", one) for one in ("ann", "ben", None)] == [True, False, False]
    for other in ("1", "2"):
        sessions.take(other, "ben")
    assert len(sessions._people) == 2
