"""docs/DATA.md: its examples load or are refused as the page says, and its table names every accepted column."""

import json
import re

import pytest

from rlhf_dialog.data.preferences import load_pairs
from rlhf_dialog.data.prompts import PromptRules
from rlhf_dialog.data.sources import columns, load_records, record
from rlhf_dialog.errors import UserError
from tests.parts.processes import ROOT

PAGE = (ROOT / "docs/DATA.md").read_text(encoding="utf-8")
EVERY = re.findall(r"^```(\S+)( refused)?\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
BLOCKS = [block for block in EVERY if block[0] != "python"]
RECIPES = [text for language, _, text in EVERY if language == "python"]


@pytest.mark.parametrize(("language", "refused", "text"), BLOCKS, ids=range(len(BLOCKS)))
def test_examples_load(tmp_path, language, refused, text):
    path = tmp_path / f"example.{language}"
    path.write_text(text, encoding="utf-8")
    if refused:
        with pytest.raises(UserError, match=r"example\.\w+, line \d"):
            load_records(str(path), "train")
    else:
        assert load_records(str(path), "train")
        assert PromptRules().load(str(path), "train")


def test_the_kinds_of_columns_are_in_their_table():
    table = PAGE[PAGE.index("| kinds | they say") : PAGE.index("A bot's key")]
    named = {name for line in table.split("\n| ") for name in re.findall(r"`([\w.]+)`", line.split("|")[0])}
    assert named == set(columns.KINDS)


def test_the_table_names_every_column():
    table = PAGE[PAGE.index("## Accepted column names") : PAGE.index("## Columns with names")]
    named = [re.findall(r"`([\w-]+)`", line) for line in table.splitlines() if line.startswith("| ") and "`" in line]
    assert list(map(tuple, named)) == [
        *(record.NAMES[kind] for kind in ("messages", "utterance", "role", "act", "dialog_id", "prompt", "system")),
        *(record.NAMES[kind] for kind in ("history", "input", "parent", "message_id")),
        (*record.NAMES["reference"], "references"),
    ]


ASK, YES, NO = "Is it far ?", "Two streets .", "Cats ."
RANKED = [{"answer": text, "model": "m", "rank": rank} for text, rank in ((NO, 3.0), (YES, 1.0), ("Far .", 2.0))]
WEBGPT = {"question": {"dataset": "eli5", "id": "1", "full_text": ASK}, "answer_0": NO, "answer_1": YES, "tokens_0": {}}
MESSAGES = {"messages": [{"role": "user", "content": ASK}], "tools": [], "parallel_tool_calls": True}
SIDES = {
    f"{name}_output": [{"role": "assistant", "content": text}]
    for name, text in (("preferred", YES), ("non_preferred", NO))
}
FOUND = {  # rows as they are published, and what the lines of the page make of them
    "nectar.jsonl": (
        [{"prompt": f"\n\nHuman: {ASK}\n\nAssistant: ", "answers": RANKED, "turns": 1, "source": ["x"], "good_natured": True}],
        [("Far .", YES), (NO, YES)],
    ),
    "webgpt.jsonl": (
        [WEBGPT | {"score_0": score, "score_1": -score} for score in (-0.5, 1.0, 0)],
        [(NO, YES), (YES, NO)],
    ),
    "openai.jsonl": ([{"input": MESSAGES, **SIDES}], [(NO, YES)]),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_the_lines_for_other_layouts_make_pairs_and_errors_point_to_them(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    rows, wanted = FOUND[name]
    (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with pytest.raises(UserError, match="Other layouts"):
        load_pairs(name, "train")
    if name != "nectar.jsonl":  # which has prompts
        with pytest.raises(UserError, match="Other layouts"):
            load_records(name, "train")
    (recipe,) = [text for text in RECIPES if name in text]
    exec(compile(recipe, name, "exec"), {})
    pairs = load_pairs("train.jsonl", "train")
    assert [(pair.rejected.response, pair.chosen.response) for pair in pairs] == wanted
    assert {tuple(pair.chosen.prompt_turns) for pair in pairs} == {(ASK,)}


@pytest.mark.parametrize("as_lists", [True, False])
def test_the_lines_for_a_json_of_columns(tmp_path, monkeypatch, as_lists):
    monkeypatch.chdir(tmp_path)
    table = {"prompt": [ASK, "Is it late ?"], "response": [YES, "No ."]}
    if not as_lists:
        table = {name: {str(number): text for number, text in enumerate(column)} for name, column in table.items()}
    (tmp_path / "columns.json").write_text(json.dumps(table), encoding="utf-8")
    with pytest.raises(UserError, match="Other layouts"):
        load_records("columns.json", "train")
    (recipe,) = [text for text in RECIPES if "columns.json" in text]
    exec(compile(recipe, "recipe", "exec"), {})
    records = [(record.turns, record.references) for record in load_records("train.jsonl", "train")]
    assert records == [([ASK], [[YES]]), (["Is it late ?"], [["No ."]])]


def test_every_recipe_is_run():
    names = [*FOUND, "columns.json"]
    assert [sum(name in text for name in names) for text in RECIPES] == [1] * len(names)
