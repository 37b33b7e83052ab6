"""What every configuration checks of its values."""

from datetime import date

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
    "keys", [{"number": True}, {"share": False}, {"share": float("nan")}, {"number": 10**13}, {"x": 1}]
)
def test_values_that_are_refused(keys):
    with pytest.raises(ValidationError):
        Small(**keys)


def test_a_system_prompt_is_for_templates_and_separators():
    assert DataKeys(turn_separator="chat_template", system_prompt="Be brief .").system_prompt == "Be brief ."
    assert DataKeys(system_prompt="Be brief .").turn_separator == "<EOU>"


def test_roles_are_compared_in_lower_case():
    assert DataKeys(reply_roles=[" Waiter", "cook"]).reply_roles == ["waiter", "cook"]


def test_a_day_is_read_as_yaml_reads_it():
    assert DataKeys(date_string=date(2026, 7, 26)).date_string == DataKeys(date_string="2026-07-26").date_string
    with pytest.raises(ValidationError, match="a day such as 2026-07-26"):
        DataKeys(date_string="tomorrow")
