"""The environment `restaurant`, as a YAML builds it."""

import json

from rlhf_dialog.environments.base import build_environment
from tests.parts.small_domain import DATA


def test_a_guest_of_the_restaurant_guide_in_words():
    environment = build_environment("restaurant", {})
    text, _ = environment.reset(seed=7)
    assert "\n[db] " in text
    assert environment.step("Goodbye .")[1:4] == (-1.0, True, False)


def test_a_domain_of_ones_own_and_its_turn_limit(tmp_path):
    path = tmp_path / "tea.json"
    path.write_text(json.dumps(DATA), encoding="utf-8")
    environment = build_environment("restaurant", {"domain": str(path), "max_turns": 1, "user": "fixed"})
    environment.reset(seed=0)
    assert environment.step("Pardon ?")[1:4] == (-1.0, False, True)
