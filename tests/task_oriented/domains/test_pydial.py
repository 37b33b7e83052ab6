import json
import sqlite3
from contextlib import closing

import pytest
from small_domain import DATA, small_domain

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains import load_domain

RULES = {
    "type": "cafe",
    "requestable": ["name", "phone", "hours", "area"],
    "system_requestable": ["tea", "area"],
    "informable": {**DATA["constraints"], "name": ["ada", "ben", "cid", "dot", "eve"]},
    "method": ["none"],
    "discourseAct": ["none"],
}
COLUMNS = ["id", "name", "tea", "area", "phone", "hours"]


def write(folder, rules=RULES, columns=COLUMNS, table="tea"):
    (folder / "tea-rules.json").write_text(json.dumps(rules))
    with closing(sqlite3.connect(folder / "tea-dbase.db")) as connection:
        connection.execute(f"create table {table} ({', '.join(columns)})")
        for number, entity in enumerate(DATA["entities"]):
            row = [str(number) if column == "id" else entity.get(column) for column in columns]
            connection.execute(f"insert into {table} values ({', '.join('?' * len(row))})", row)
        connection.commit()
    return folder / "tea-rules.json"


def test_the_two_files_are_one_domain(tmp_path):
    path = write(tmp_path)
    assert load_domain(path).hash == small_domain().hash
    assert load_domain(tmp_path).hash == small_domain().hash  # the folder holds one domain
    assert load_domain(str(path)).name == "tea"


def test_a_data_base_is_only_read(tmp_path):
    write(tmp_path)
    before = (tmp_path / "tea-dbase.db").read_bytes()
    load_domain(tmp_path)
    assert (tmp_path / "tea-dbase.db").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tea-dbase.db", "tea-rules.json"]


def test_names_that_no_entity_has_are_known(tmp_path):
    rules = {**RULES, "informable": {**RULES["informable"], "name": ["zoe", "ada"]}}
    assert load_domain(write(tmp_path, rules)).values("name") == ("zoe", "ada", "ben", "cid", "dot", "eve")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rules": {**RULES, "informable": None}}, "tea-rules.json: 'informable' is missing"),
        (
            {"rules": {**RULES, "system_requestable": ["tee"]}},
            "tea-rules.json, system_requestable: the ontology lacks .*'tee'",
        ),
        ({"rules": {**RULES, "requestable": ["fax"]}}, "tea-dbase.db: the ontology lacks the slot 'phone'"),
        ({"rules": {**RULES, "requestable": [*RULES["requestable"], "fax"]}}, "tea-rules.json.*tea-dbase.db: .*'fax'"),
        ({"columns": [*COLUMNS, "fax"]}, "tea-dbase.db: the ontology lacks the slot 'fax'"),
        ({"table": "cafes"}, "tea-dbase.db: cannot be read .no such table: tea.; it needs a table tea"),
    ],
)
def test_what_is_missing_is_named_with_its_file(tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        load_domain(write(tmp_path, **changes))


def test_without_a_data_base(tmp_path):
    path = write(tmp_path)
    (tmp_path / "tea-dbase.db").unlink()
    with pytest.raises(UserError, match=r"tea-dbase\.db: there is no such file"):
        load_domain(path)
    (tmp_path / "tea-dbase.db").write_text("not a data base, but long enough to be looked at as one")
    with pytest.raises(UserError, match=r"tea-dbase\.db: cannot be read"):
        load_domain(path)
