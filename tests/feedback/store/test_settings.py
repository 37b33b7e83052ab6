"""The keys of a bot's config.yaml: strict, with their names in the message; the file of a new bot loads."""

import re

import pytest
import yaml

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.store.limits import PageLimits
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("persn_cap: 0.1", "persn_cap: unknown key; did you mean 'person_cap'"),
        ("person_cap: 0", "person_cap: found 0"),
        ("method: ppo", "method: found 'ppo', wanted 'kto_dpo' or 'reward_model_ppo'"),
        ("min_heldout: many", "min_heldout: found 'many'"),
        ("min_words: 9\nmax_words: 3", "min_words: found 9, wanted at most max_words, which is 3"),
        ("- a", "must be a mapping"),
        ("page_messages_a_minute: 0", "page_messages_a_minute: found 0"),
        ("page_message_chars: 50000", "page_request_bytes: found 262144, wanted at least 8 for each"),
    ],
)
def test_a_mistake_is_named_with_its_key(tmp_path, text, message):
    with pytest.raises(UserError, match=re.escape(message)):
        read_settings(write(tmp_path, text))


def test_every_mistake_at_once(tmp_path):
    with pytest.raises(UserError, match=r"2 problems") as caught:
        read_settings(write(tmp_path, "beta: -1\nepoch: 2"))
    assert "did you mean 'epochs'" in str(caught.value)


def test_the_limits_of_the_page(tmp_path):
    assert BotSettings().limits == PageLimits()
    given = {
        "page_message_chars": 50, "page_request_bytes": 70_000, "page_messages_a_minute": 1, "page_messages_a_day": 2,
        "page_ratings_a_minute": 3, "page_ratings_a_day": 4, "page_looks_a_minute": 5, "page_looks_a_day": 6,
        "page_times_in_all": 7, "page_open_dialogues": 8, "page_person_open_dialogues": 9,
    }  # fmt: skip
    assert sorted(given) == sorted(PageKeys.model_fields)
    assert read_settings(write(tmp_path, yaml.safe_dump(given))).limits == PageLimits(
        message_chars=50, body_bytes=70_000, messages=(1, 2), ratings=(3, 4), looks=(5, 6), times_in_all=7, talks=8,
        person_talks=9,
    )  # fmt: skip


def test_a_night_is_not_compared_by_the_limits_of_the_page():
    """Else a night that was killed could not go on after a change of them, and the same feedback would be learned again."""
    assert BotSettings(page_messages_a_day=5).model_dump() == BotSettings().model_dump()


def test_keys_of_earlier_versions_have_no_effect_and_say_so(tmp_path, caplog):
    caplog.set_level("INFO")
    path = write(tmp_path, "contradiction_confidence: 0.99\npage_wrong_passwords: 10\nbeta: 0.2\n")
    assert read_settings(path) == BotSettings(beta=0.2)
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        "contradiction_confidence: has no effect here",
        "page_wrong_passwords: has no effect here",
    ]
