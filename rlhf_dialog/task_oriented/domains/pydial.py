"""PyDial's format: `<Domain>-rules.json` with the ontology, and beside it `<Domain>-dbase.db`, SQLite, with the entities."""

import logging
import sqlite3
from collections import Counter
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from rlhf_dialog.errors import UserError
from rlhf_dialog.json_files import check_shape, damage_as_user_error
from rlhf_dialog.task_oriented.domains.domain import NAME, UNKNOWN, Domain, check_slots

logger = logging.getLogger(__name__)
RULES, DATA_BASE = "-rules.json", "-dbase.db"
NUMBERS = ("id",)  # a column of every table, and a slot of none


class Rules(BaseModel):
    """What is read of the rules."""

    type: str
    requestable: list[str]
    system_requestable: list[str]
    informable: dict[str, list[str]]


def read_pydial(rules: Any, path: Path) -> Domain:
    """The domain of the parsed rules at `path`. Entities of one name are branches: from the second row on they are numbered.

    Columns that the rules do not name and slots without values are left out. Raises UserError, with the file and the slot, when
    something is missing, or no slot to ask for is left.
    """
    with damage_as_user_error(f"{path}: is not PyDial's rules ({', '.join(Rules.model_fields)}): "):
        check_shape(rules, Rules)
    informable, requestable = rules["informable"], rules["requestable"]
    check_slots(rules["system_requestable"], informable, f"{path}, system_requestable")
    name = path.name.removesuffix(RULES)
    data_base = path.with_name(name + DATA_BASE)
    entities = _rows(data_base, name)
    columns = dict.fromkeys(slot for entity in entities for slot in entity)
    if entities:
        check_slots([NAME, *rules["system_requestable"], *requestable], columns, f"{path}, of which {data_base.name}")
    constraints = {slot: informable[slot] for slot in rules["system_requestable"]}
    domain = Domain(name, rules["type"], constraints, requestable, _number_names(entities), informable.get(NAME, ()))
    return _without_dead_slots(domain, str(data_base)) if entities else domain


def _number_names(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """The rows with names of their own, as stable as their order: `oyster bar`, `oyster bar (2)`, `oyster bar (3)`."""
    names = [(row[NAME] or UNKNOWN).lower() for row in rows]
    taken, seen = set(names), Counter[str]()
    for row, name in zip(rows, names, strict=True):
        seen[name] += 1
        if seen[name] > 1:
            row[NAME] = next(new for number in count(seen[name]) if (new := f"{name} ({number})") not in taken)
            taken.add(row[NAME])
    return rows


def _without_dead_slots(domain: Domain, where: str) -> Domain:
    """The domain without constraints that no entity fulfils; users ask for such a slot where an entity says something of it."""
    constraints = {slot: values for slot, values in domain.constraints.items() if domain.used_values(slot) & {*values}}
    if not constraints:
        raise UserError(
            f"{where}: no entity has any of the values of the slots that may be asked for "
            f"({', '.join(domain.constraints) or 'there are none'}); correct the values, or the rules"
        )
    dead = [slot for slot in domain.constraints if slot not in constraints]
    requestable = [slot for slot in domain.requestable if slot not in dead or domain.used_values(slot) != {UNKNOWN}]
    if dead:
        logger.info("%s: left out are slots without values (%s)", where, ", ".join(dead))
    return Domain(domain.name, domain.type, constraints, requestable, domain.entities, domain.names)


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
