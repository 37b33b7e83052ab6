import json
import logging
import sqlite3
from contextlib import closing
from random import Random

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains import load_domain
from rlhf_dialog.task_oriented.world.acts import Act
from rlhf_dialog.task_oriented.world.goals import Goal
from rlhf_dialog.task_oriented.world.success import evaluate
from rlhf_dialog.task_oriented.world.words import system_words
from tests.parts.small_domain import DATA, small_domain

RULES = {
    "type": "cafe",
    "requestable": ["name", "phone", "hours", "area"],
    "system_requestable": ["tea", "area"],
    "informable": {**DATA["constraints"], "name": ["ada", "ben", "cid", "dot", "eve"]},
    "method": ["none"],
    "discourseAct": ["none"],
}
COLUMNS = ["id", "name", "tea", "area", "phone", "hours"]


def write(folder, rules=RULES, columns=COLUMNS, table="tea", entities=DATA["entities"]):
    (folder / "tea-rules.json").write_text(json.dumps(rules))
    (folder / "tea-dbase.db").unlink(missing_ok=True)
    with closing(sqlite3.connect(folder / "tea-dbase.db")) as connection:
        connection.execute(f"create table {table} ({', '.join(columns)})")
        for number, entity in enumerate(entities):
            row = [str(number) if column == "id" else entity.get(column) for column in columns]
            connection.execute(f"insert into {table} values ({', '.join('?' * len(row))})", row)
        connection.commit()
    return folder / "tea-rules.json"


def test_the_two_files_are_one_domain(tmp_path):
    path = write(tmp_path)
    assert load_domain(path).hash == small_domain().hash
    assert load_domain(tmp_path).hash == small_domain().hash  # the folder holds one domain
    assert load_domain(str(path)).name == "tea"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rules": {**RULES, "informable": None}}, ("tea-rules.json", "informable")),
        ({"rules": {**RULES, "system_requestable": ["tee"]}}, ("tea-rules.json, system_requestable", "'tee'")),
        ({"columns": ["id", *COLUMNS[2:]]}, ("tea-rules.json, of which tea-dbase.db", "'name'")),
        ({"rules": {**RULES, "requestable": [*RULES["requestable"], "fax"]}}, ("tea-dbase.db", "'fax'")),
        ({"table": "cafes"}, ("tea-dbase.db", "needs a table tea")),
        ({"entities": []}, ("no entity",)),
        (
            {"rules": {**RULES, "informable": {**RULES["informable"], "tea": ["mint"], "area": ["centre"]}}},
            ("tea-dbase.db", "tea, area"),
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_file(tmp_path, changes, words):
    with pytest.raises(UserError) as raised:
        load_domain(write(tmp_path, **changes))
    assert [word for word in words if word not in str(raised.value)] == []


def test_columns_that_the_rules_do_not_name_and_dead_slots_are_one_line_of_the_log(tmp_path, caplog):
    """`fax` is in no rule; nobody says `garden`; `area` has values, but none that users may want. What users only ask for,
    as `pool`, stays, as in the domains that were always read."""
    informable = {**RULES["informable"], "garden": ["0", "1"], "area": ["centre"]}
    rules = {**RULES, "informable": informable, "requestable": [*RULES["requestable"], "garden", "pool"]}
    rules["system_requestable"] = ["area", "tea", "garden"]
    with caplog.at_level(logging.INFO, logger="rlhf_dialog"):
        domain = load_domain(write(tmp_path, rules, [*COLUMNS, "fax", "garden", "pool"]))
    assert list(domain.constraints) == ["tea"]
    assert domain.requestable == ("name", "phone", "hours", "area", "pool")
    assert set(domain.entities[0]) == {"name", "phone", "hours", "area", "pool", "tea"}
    lines = [line for line in caplog.messages if "left out" in line]
    assert [line.split("tea-dbase.db: ")[1] for line in lines] == ["left out are slots without values (area, garden)"]


def test_branches_are_numbered_in_the_order_of_the_rows(tmp_path):
    names = ["Oyster Bar", "ada", "oyster bar", "ada (2)", "ada", "oyster bar", "ada"]
    rows = [{"name": name, "tea": "green", "area": "north", "phone": str(n)} for n, name in enumerate(names)]
    domain = load_domain(write(tmp_path, entities=rows))
    found = [entity["name"] for entity in domain.entities]
    assert found == ["oyster bar", "ada", "oyster bar (2)", "ada (2)", "ada (3)", "oyster bar (3)", "ada (4)"]
    assert [domain.entity(name)["phone"] for name in found] == list("0123456")


def test_an_offer_of_a_branch_is_judged_by_its_own_row_in_acts_and_in_words(tmp_path):
    rows = [{"name": "ada", "tea": tea, "area": "north", "phone": tea} for tea in ("green", "black")]
    domain = load_domain(write(tmp_path, entities=rows))
    goal = Goal({"tea": "black"}, {"name": None, "phone": None})
    second = [Act("inform", "name", "ada (2)"), Act("inform", "phone", "black")]
    assert evaluate(domain, goal, [second]).success
    assert not evaluate(domain, goal, [[Act("inform", "name", "ada"), second[1]]]).success
    assert not evaluate(domain, goal, [[second[0], Act("inform", "phone", "green")]]).success
    words = system_words(domain)
    assert words.read(words.say(second, Random(0))) == second
    assert words.read("I would take ada (2) .") == [second[0]]
