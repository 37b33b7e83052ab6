"""The keys of a bot's config.yaml: strict, with their names in the message; the file of a new bot loads."""

import re

import pytest
import yaml

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.settings import BotSettings, default_settings, read_settings


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
    ],
)
def test_a_mistake_is_named_with_its_key(tmp_path, text, message):
    with pytest.raises(UserError, match=re.escape(message)):
        read_settings(write(tmp_path, text))


def test_every_mistake_at_once(tmp_path):
    with pytest.raises(UserError, match=r"2 problems") as caught:
        read_settings(write(tmp_path, "beta: -1\nepoch: 2"))
    assert "did you mean 'epochs'" in str(caught.value)
