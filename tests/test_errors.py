"""The nearest name in a message."""

import rlhf_dialog.rewards  # noqa: F401
from rlhf_dialog.errors import nearest


def test_nothing_near_gives_no_suggestion(registry):
    assert "did you mean" not in registry.problem("xyz", {})
    assert nearest("xyz", ["Politeness"]) == ""
