"""CamRest676 as ConvLab ships it: `db/CamRestDB.json` with the entities, `goal_model.json` with the goals' slots and values."""

from pathlib import Path
from typing import Any

from rlhf_dialog.json_files import damage_as_user_error
from rlhf_dialog.task_oriented.domains.domain import DONTCARE, NAME, Domain

DATA_BASE, GOALS = "db/CamRestDB.json", "goal_model.json"


def read_camrest(entities: Any, goals: Any, folder: Path) -> Domain:
    """The domain of the two parsed files of `folder`. The values are those of the goals and those of the entities.

    Raises UserError when something is missing.
    """
    with damage_as_user_error(f"{folder}: is not CamRest676 ({DATA_BASE}, {GOALS}): "):
        wanted = {slot: {*values} - {DONTCARE} for slot, values in goals["ind_slot_value_dist"]["info"].items()}
        requestable = [NAME, *goals["ind_slot_dist"]["reqt"]]
        rows = [{slot: str(entity[slot]) for slot in (*wanted, *requestable) if slot in entity} for entity in entities]
        constraints = {
            slot: sorted({*values, *(row[slot].lower() for row in rows if slot in row)})
            for slot, values in wanted.items()
        }
        return Domain("CamRest676", "restaurant", constraints, requestable, rows)
