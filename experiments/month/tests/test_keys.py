"""The keys of a month: its two YAMLs load, and page and schema are those of the class."""

import json

import pytest

from experiments.month import keys
from experiments.month.simulation import MonthKeys
from rlhf_dialog.config.loading import load_settings
from tests.parts.processes import ROOT
from tests.parts.schemas import faults, read_as_an_editor

CONFIGS = [ROOT / "configs" / name for name in ("month.yaml", "month_ppo.yaml")]


@pytest.mark.parametrize("path", keys.written(), ids=lambda path: path.name)
def test_page_and_schema_are_up_to_date(path):
    assert path.read_text(encoding="utf-8") == keys.written()[path], "run python -m experiments.month.keys"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_the_configurations_load_and_name_their_schema(path):
    assert load_settings(MonthKeys, path).output.startswith("runs/")
    assert "$schema=../experiments/month/schema.json" in path.read_text(encoding="utf-8")
    schema = json.loads((keys.FOLDER / "schema.json").read_text(encoding="utf-8"))
    assert faults(read_as_an_editor(path), schema) == []
