"""The keys of a month: its YAML loads, and page and schema are those of the class."""

import json

import pytest

from experiments.month import keys
from experiments.month.simulation import MonthKeys
from rlhf_dialog.config.loading import load_settings
from tests.parts.processes import ROOT
from tests.parts.schemas import faults, read_as_an_editor


@pytest.mark.parametrize("path", keys.written(), ids=lambda path: path.name)
def test_page_and_schema_are_up_to_date(path):
    assert path.read_text(encoding="utf-8") == keys.written()[path], "run python -m experiments.month.keys"


def test_the_configuration_loads_and_names_its_schema():
    path = ROOT / "configs" / "month.yaml"
    assert load_settings(MonthKeys, path).output.startswith("runs/")
    assert "$schema=../experiments/month/schema.json" in path.read_text(encoding="utf-8")
    schema = json.loads((keys.FOLDER / "schema.json").read_text(encoding="utf-8"))
    assert faults(read_as_an_editor(path), schema) == []
