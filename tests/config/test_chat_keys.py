"""The keys that runs, supervised training and agents have in common."""

import pytest
from pydantic import ValidationError

from rlhf_dialog.config.chat_keys import DataKeys


def test_a_system_prompt_needs_a_template():
    assert DataKeys(turn_separator="chat_template", system_prompt="Be brief .").system_prompt == "Be brief ."
    with pytest.raises(ValidationError, match="system_prompt: needs turn_separator: chat_template, found '<EOU>'"):
        DataKeys(system_prompt="Be brief .")
