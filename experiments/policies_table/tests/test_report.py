"""The table for readers."""

import io

from rich.console import Console

from experiments.policies_table.report import markdown, tables
from experiments.policies_table.rows import rows_of
from experiments.policies_table.tests.policy_cells import few_cells


def test_markdown_has_a_line_for_each_policy_the_best_first():
    lines = markdown(rows_of(few_cells()), 2).splitlines()
    assert lines[:2] == [
        "0 % error, 2 test dialogues, mean [95 % interval over 2 training seeds and the dialogues]:",
        "",
    ]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:] if line]
    assert cells[0] == [
        *("policy", "seeds", "success % after 10", "success % after 20", "reward", "turns"),
        *("reward - handcrafted", "dialogues", "CPU s", "parameters"),
    ]
    assert [line[0] for line in cells[2:]] == ["good", "handcrafted", "random", "bad (loses to random)"]
    good, handcrafted = cells[2], cells[3]
    assert good[1:4] == ["2", "50.0 [0.0, 100.0]", "100.0 [100.0, 100.0]"]
    assert good[4].startswith("10.00 [")
    assert good[6:] == ["+2.00 [-10.71, +14.71]", "20", "4.0", "30"]
    assert handcrafted[2:4] == ["", "100.0 [100.0, 100.0]"]
    assert handcrafted[6:] == ["", "", "", ""]


def test_the_terminal_shows_the_same():
    console = Console(width=200, record=True, file=io.StringIO())
    for table in tables(rows_of(few_cells()), 2):
        console.print(table)
    text = console.export_text()
    assert "bad (loses to random)" in text
    assert "[-10.71, +14.71]" in text


def test_without_a_policy_that_learns_there_is_one_column_of_success():
    lines = markdown(rows_of(few_cells()[:2]), 2).splitlines()
    assert lines[2].startswith("| policy | seeds | success % | reward |")
    assert lines[4].startswith("| handcrafted | 1 | 100.0 [100.0, 100.0] | 8.00 [")
