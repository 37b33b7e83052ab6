"""Which data a card names, and their licence."""

import pytest

from rlhf_dialog.publishing.data_set import cell, code, code_block, describe_data_set

LICENCE = "cc-by-nc-sa-4.0"  # of DailyDialog, as its authors and the Hub say


@pytest.mark.parametrize(
    "path",
    [
        "daily_dialog",
        "li2017dailydialog/daily_dialog",
        "OpenRL/daily_dialog",
        "/data/DailyDialog",
        "./ijcnlp_dailydialog.zip",
    ],
)
def test_daily_dialog_is_known_by_its_name(path):
    found = describe_data_set(path)
    assert (found.licence, found.hub_name, found.language) == (LICENCE, "li2017dailydialog/daily_dialog", "en")
    assert "CC BY-NC-SA 4.0" in found.text


@pytest.mark.parametrize(("count", "licence"), [(1000, LICENCE), (999, "other")])
def test_and_by_its_layout_and_size(count, licence, tmp_path):
    (tmp_path / "validation").mkdir()
    (tmp_path / "validation" / "dialogues_validation.txt").write_text("a __eou__ b __eou__\n" * count)
    assert describe_data_set(str(tmp_path)).licence == licence


@pytest.mark.parametrize(
    ("path", "name", "hub_name", "type_"),
    [
        ("/home/ada/my talks", "my talks", None, "my-talks"),
        ("someone/talks", "someone/talks", "someone/talks", "someone/talks"),
        (None, "unknown", None, "unknown"),
    ],
)
def test_other_data_ask_for_their_licence(path, name, hub_name, type_):
    found = describe_data_set(path)
    assert (found.name, found.licence, found.hub_name, found.type) == (name, "other", hub_name, type_)
    assert "Please fill in" in found.text
    assert "/home" not in found.text


@pytest.mark.parametrize(
    ("text", "span"),
    [("a", "`a`"), ("a`b", "`` a`b ``"), ("``", "``` `` ```"), ("a\nb\t\x1b", r"`a\nb\t\x1b`"), (3, "`3`")],
)
def test_a_code_span_is_one_line_that_ends_where_it_should(text, span):
    assert code(text) == span


def test_a_cell_has_no_bar_of_its_own():
    assert cell("<|end|>") == r"`<\|end\|>`"


def test_a_fence_is_longer_than_those_in_it():
    assert code_block("a", "yaml") == "```yaml\na\n```"
    assert code_block("````", "") == "`````\n````\n`````"
