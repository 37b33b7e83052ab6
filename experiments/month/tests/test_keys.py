"""The YAML of a month loads, and fits its schema."""

import json

from experiments.month import keys
from experiments.month.simulation import MonthKeys
from rlhf_dialog.config.loading import load_settings
from tests.parts.processes import ROOT
from tests.parts.schemas import faults, read_as_an_editor


def test_the_configuration_loads_and_names_its_schema():
    path = ROOT / "configs" / "month.yaml"
    assert load_settings(MonthKeys, path).output.startswith("runs/")
    assert "$schema=../experiments/month/schema.json" in path.read_text(encoding="utf-8")
    schema = json.loads((keys.FOLDER / "schema.json").read_text(encoding="utf-8"))
    assert faults(read_as_an_editor(path), schema) == []
