"""What every configuration checks of its values."""

import pytest
from pydantic import Field, ValidationError

from rlhf_dialog.config.settings import DataKeys, Settings


class Small(Settings):
    number: int = Field(1, description="a whole number")
    share: float = Field(0.5, description="a share")
    name: str = Field("a", description="a name")


def test_numbers_that_yaml_reads_as_text():
    assert (Small(number="1e3").number, Small(share="1e-6").share, Small(name=5).name) == (1000, 1e-6, "5")


@pytest.mark.parametrize(
    "keys",
    [{"number": True}, {"share": False}, {"share": float("nan")}, {"number": 10**13}, {"x": 1}],
)
def test_values_that_are_refused(keys):
    with pytest.raises(ValidationError):
        Small(**keys)


def test_a_system_prompt_needs_a_template():
    assert DataKeys(turn_separator="chat_template", system_prompt="Be brief .").system_prompt == "Be brief ."
    with pytest.raises(ValidationError, match="system_prompt: needs turn_separator: chat_template, found '<EOU>'"):
        DataKeys(system_prompt="Be brief .")
