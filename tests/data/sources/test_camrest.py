"""CamRest676 in its own layout: zips with one JSON file each."""

import json
import zipfile

import pytest

from rlhf_dialog.data.sources import load_records
from rlhf_dialog.errors import UserError

ROW = {
    "dial": [
        {
            "turn": 0,
            "usr": {"transcript": "Thai food, please. ", "slu": [], "dialog_act": {"inform": [["food", "Thai"]]}},
            "sys": {"sent": "There is Ada Thai.", "DA": [], "dialog_act": {"inform": [["name", "Ada Thai"]]}},
        },
        {
            "turn": 1,
            "usr": {
                "transcript": "Their phone?",
                "slu": [],
                "dialog_act": {"request": [["phone", "?"], ["area", "?"]]},
            },
            "sys": {"sent": "It is 11.", "DA": [], "dialog_act": {}},
        },
    ],
    "dialogue_id": 7,
    "finished": True,
    "goal": {"text": "Task 1: ...", "info": {"food": "thai"}, "reqt": ["phone", "area"]},
}


def write(folder, split, rows):
    with zipfile.ZipFile(folder / f"{split}.json.zip", "w") as archive:
        archive.writestr(f"{split}.json", json.dumps(rows))


def test_a_dialogue_with_its_goal_and_acts(tmp_path):
    write(tmp_path, "val", [ROW])
    (record,) = load_records(str(tmp_path), "validation")
    assert record.turns == ["Thai food, please.", "There is Ada Thai.", "Their phone?", "It is 11."]
    assert record.acts is None
    assert record.meta == {
        "goal": {"text": "Task 1: ...", "constraints": {"food": "thai"}, "requests": ["phone", "area"]},
        "dialogue_acts": ["inform(food=thai)", "inform(name=ada thai)", "request(phone) request(area)", ""],
    }


@pytest.mark.parametrize("wrong", [{"dial": [{"usr": {}}]}, {"dial": ROW["dial"]}, {"dial": ROW["dial"], "goal": []}])
def test_a_row_that_lacks_a_part_is_named(tmp_path, wrong):
    write(tmp_path, "test", [ROW, wrong])
    with pytest.raises(UserError, match=r"test\.json.*2.*is not a dialogue of CamRest676"):
        load_records(str(tmp_path), "test")
