"""How much one person, and all together, may ask of the page."""

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.sessions.rates import Rates, _duration, check_length
from rlhf_dialog.feedback.store.settings import ApiKeys, BotSettings, PageKeys


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_one_person_and_all_together(clock):
    rates = Rates(PageKeys(page_messages_a_minute=2, page_times_in_all=2), clock)
    for person in ("a", "b"):
        rates.count("messages", person)
        rates.count("messages", person)
    with pytest.raises(UserError, match=r"faster than one person may .* wait 30 seconds"):
        rates.count("messages", "a")
    with pytest.raises(UserError, match=r"too many people .* wait 15 seconds"):
        rates.count("messages", "c")
    rates.count("ratings", "a")
    clock.now += 30
    rates.count("messages", "a")
    clock.now += 1000  # all that may be is there again, and not more
    for _ in range(2):
        rates.count("messages", "a")
    with pytest.raises(UserError, match="wait 30 seconds"):
        rates.count("messages", "a")


def test_page_and_api_have_limits_of_their_own(clock):
    settings = BotSettings(page_ratings_a_minute=1, api_ratings_a_minute=2)
    for rates, most in (
        (Rates(settings, clock), 1),
        (Rates(settings, clock, "api"), 2),
        (Rates(ApiKeys(), clock, "api"), 120),
    ):
        for _ in range(most):
            rates.count("ratings", "a")
        with pytest.raises(UserError, match="faster"):
            rates.count("ratings", "a")


def test_durations():
    wanted = {0.2: "1 second", 60: "60 seconds", 61: "2 minutes", 3600: "60 minutes", 3601: "2 hours"}
    assert {seconds: _duration(seconds) for seconds in wanted} == wanted


def test_a_day_has_its_limit(clock):
    rates = Rates(PageKeys(page_messages_a_minute=10, page_messages_a_day=12), clock)
    for _ in range(12):
        rates.count("messages", "a")
        clock.now += 10
    with pytest.raises(UserError, match="wait 2 hours"):
        rates.count("messages", "a")


def test_people_who_rest_are_forgotten(clock, monkeypatch):
    monkeypatch.setattr(Rates, "MAX_PEOPLE", 3)
    rates = Rates(PageKeys(), clock)
    for number in range(10):
        rates.count("messages", f"person {number}")
    assert [key[1] for key in rates._people] == ["person 7", "person 8", "person 9"]


def test_lengths():
    limits = PageKeys(page_message_chars=5)
    assert check_length("a\r\nb\rc", limits, "the message") == "a\nb\nc"
    with pytest.raises(UserError, match="the message has 6 characters; shorten it to 5"):
        check_length("abcdef", limits, "the message")
