"""CamRest676 as ConvLab ships it: `db/CamRestDB.json` with the entities, `goal_model.json` with the goals' slots and values."""

from pathlib import Path
from typing import Any

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains.domain import DONTCARE, NAME, Domain, check_slots

DATA_BASE, GOALS = "db/CamRestDB.json", "goal_model.json"
WITHOUT_SLOT = ("id", "location", "type")  # of an entity, but never spoken of


def read_camrest(entities: Any, goals: Any, folder: Path) -> Domain:
    """The domain of the two parsed files of `folder`. The values are those of the goals and those of the entities.

    Raises UserError, with the file and the slot, when something is missing.
    """
    try:
        model, asked = goals["ind_slot_value_dist"]["info"], goals["ind_slot_dist"]["reqt"]
        constraint_values = {slot: [value for value in values if value != DONTCARE] for slot, values in model.items()}
    except (KeyError, TypeError, AttributeError):
        raise UserError(
            f"{folder / GOALS}: is not CamRest676's goal model (ind_slot_dist, ind_slot_value_dist)"
        ) from None
    path = folder / DATA_BASE
    if not isinstance(entities, list) or not all(isinstance(entity, dict) and entity.get(NAME) for entity in entities):
        raise UserError(f"{path}: is not a list of restaurants with a name each")
    rows = [{slot: str(v) for slot, v in entity.items() if slot not in WITHOUT_SLOT} for entity in entities]
    slots = dict.fromkeys(slot for row in rows for slot in row)
    check_slots(slots, [NAME, *constraint_values, *asked], str(path))
    check_slots([*constraint_values, *asked], slots, f"{folder / GOALS}, of which {path.name}")
    constraints = {
        slot: sorted({*constraint_values[slot], *(r[slot].lower() for r in rows if slot in r)})
        for slot in constraint_values
    }
    return Domain("CamRest676", "restaurant", constraints, [NAME, *asked], rows)
