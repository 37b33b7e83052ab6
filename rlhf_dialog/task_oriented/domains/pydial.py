"""PyDial's format: `<Domain>-rules.json` with the ontology, and beside it `<Domain>-dbase.db`, SQLite, with the entities."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains.domain import NAME, Domain, check_slots

RULES, DATA_BASE = "-rules.json", "-dbase.db"
KEYS = {"type": str, "requestable": list, "system_requestable": list, "informable": dict}
NUMBERS = ("id",)  # a column of every table, and a slot of none


def read_pydial(rules: Any, path: Path) -> Domain:
    """The domain of the parsed rules at `path`. Raises UserError, with the file and the slot, when something is missing."""
    for key, kind in KEYS.items():
        if not isinstance(rules, dict) or not isinstance(rules.get(key), kind):
            raise UserError(f"{path}: '{key}' is missing; PyDial's rules have {', '.join(KEYS)}")
    informable, requestable = rules["informable"], rules["requestable"]
    check_slots(rules["system_requestable"], informable, f"{path}, system_requestable")
    name = path.name.removesuffix(RULES)
    data_base = path.with_name(name + DATA_BASE)
    entities = _rows(data_base, name)
    columns = dict.fromkeys(slot for entity in entities for slot in entity)
    check_slots(columns, [NAME, *informable, *requestable], str(data_base))
    if entities:
        check_slots([*rules["system_requestable"], *requestable], columns, f"{path}, of which {data_base.name}")
    constraints = {slot: informable[slot] for slot in rules["system_requestable"]}
    return Domain(name, rules["type"], constraints, requestable, entities, informable.get(NAME, ()))


def _rows(path: Path, table: str) -> list[dict[str, str]]:
    if not path.is_file():
        raise UserError(f"{path}: there is no such file; PyDial's data base lies beside the rules")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            quoted = table.replace('"', '""')
            rows = [dict(row) for row in connection.execute(f'select * from "{quoted}"')]
    except sqlite3.Error as error:
        raise UserError(f"{path}: cannot be read ({error}); it needs a table {table}") from None
    return [{slot: str(value or "") for slot, value in row.items() if slot not in NUMBERS} for row in rows]
