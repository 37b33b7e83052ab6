"""config.yaml of a bot, its limits, and how many ratings are still missing."""

import re

import pytest
import yaml

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.page.rates import Bucket, Rates, check_length
from rlhf_dialog.feedback.store.examples import describe_progress
from rlhf_dialog.feedback.store.settings import BotSettings, PageKeys, default_settings, read_settings


def write(folder, text):
    path = folder / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_file_of_a_new_bot_holds_every_key_with_its_default(tmp_path):
    text = default_settings()
    assert read_settings(write(tmp_path, text)) == BotSettings()
    assert list(yaml.safe_load(text)) == list(BotSettings.model_fields)
    lines = text.splitlines()
    keys = [i for i, line in enumerate(lines) if re.match(r"\w+:", line)]
    assert all(lines[i - 1].startswith("# ") for i in keys)


def test_a_night_is_not_compared_by_the_limits_of_the_page():
    """Else a night that was killed could not go on after a change of them, and the same feedback would be learned again."""
    assert BotSettings(page_messages_a_day=5).model_dump() == BotSettings().model_dump()


def test_keys_of_earlier_versions_have_no_effect_and_say_so(tmp_path, caplog):
    caplog.set_level("INFO")
    path = write(tmp_path, "contradiction_confidence: 0.99\npage_wrong_passwords: 10\nppo_kl_coef: 0.1\nbeta: 0.2\n")
    assert read_settings(path) == BotSettings(beta=0.2)
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        "contradiction_confidence: has no effect here",
        "page_wrong_passwords: has no effect here",
        "ppo_kl_coef: has no effect here",
    ]


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_a_bucket_fills_again(clock):
    bucket = Bucket(3, 60, clock)
    for _ in range(3):
        assert bucket.wait() == 0
        bucket.take()
    assert bucket.wait() == pytest.approx(20)
    clock.now += 20
    assert bucket.wait() == 0
    clock.now += 1000
    for _ in range(3):  # not more than its size
        assert bucket.wait() == 0
        bucket.take()
    assert bucket.wait() == pytest.approx(20)


def test_one_person_and_all_together(clock):
    rates = Rates(PageKeys(page_messages_a_minute=2, page_times_in_all=2), clock)
    for person in ("a", "b"):
        rates.count("messages", person)
        rates.count("messages", person)
    with pytest.raises(UserError, match="faster than this page allows; wait 30 seconds"):
        rates.count("messages", "a")
    with pytest.raises(UserError, match=r"too many people .* wait 15 seconds"):
        rates.count("messages", "c")
    rates.count("ratings", "a")
    clock.now += 30
    rates.count("messages", "a")


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


def test_a_fifth_is_held_out_so_thirty_take_about_150_ratings():
    assert describe_progress(12, 3, BotSettings()).startswith("12 of about 150 ratings: one dialogue of 5 is held out")
