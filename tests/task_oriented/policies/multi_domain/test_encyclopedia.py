"""Pages of a file: found by any spelling of the title, and refused with file and page where they cannot be used."""

import json

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.policies.multi_domain.encyclopedia import OfflineFile, WikiPage, normal

MOON = {"title": "The Moon", "summary": "A satellite.", "sections": {"Orbit": "27 days."}}
SEA = {"title": "Moon (sea)", "summary": "An invented sea."}


def offline(tmp_path, data):
    (tmp_path / "pages.json").write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return OfflineFile(tmp_path / "pages.json")


def test_the_file_of_the_package():
    found = OfflineFile()
    assert len([page for page in found.pages.values() if isinstance(page, WikiPage)]) == 12
    assert found.fetch("mercury") == ["Mercury (planet)", "Mercury (element)", "Mercury (god)"]
    assert found.fetch("the harbour of lindmouth").sections["Lighthouse"].startswith("The lighthouse has 99 steps.")
    assert found.suggest_titles("Bycicle") == ["Bicycle"]


def test_case_punctuation_and_articles_do_not_matter(tmp_path):
    found = offline(tmp_path, {"pages": [MOON, SEA]})
    assert (
        found.fetch("moon!") == found.fetch("THE  MOON") == WikiPage("The Moon", "A satellite.", {"Orbit": "27 days."})
    )
    assert found.fetch("Moon, sea").sections == {}
    assert found.fetch("Sun") is None
    assert found.suggest_titles("mo on")[0] == "The Moon"
    assert (normal("A"), normal("The"), normal("Ölfarbe_2")) == ("a", "the", "ölfarbe 2")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("{", "pages.json: cannot be read as JSON"),
        ([], 'expected {"pages": [...], "ambiguous": {...}} with at least one page'),
        ({"pages": []}, "with at least one page"),
        ({"pages": [MOON], "other": 1}, "with at least one page"),
        ({"pages": [MOON, "Sun"]}, "page 2: expected the texts title and summary"),
        ({"pages": [{"title": "Sun"}]}, "page 1: expected the texts title and summary"),
        ({"pages": [{"title": "...", "summary": "Dots."}]}, "page 1: expected the texts"),
        ({"pages": [MOON | {"sections": ["Orbit"]}]}, "page 1: expected the texts"),
        ({"pages": [MOON | {"sections": {"Orbit": 27}}]}, "page 1: expected the texts"),
        ({"pages": [MOON | {"history": "Old."}]}, "page 1: expected the texts"),
        ({"pages": [MOON, {"title": "moon", "summary": "Again."}]}, "page 2: the title 'moon' is there twice"),
        ({"pages": [MOON, SEA], "ambiguous": ["Moon"]}, "ambiguous: 'ambiguous': expected a list of two titles"),
        ({"pages": [MOON, SEA], "ambiguous": {"M": ["The Moon"]}}, "ambiguous: 'M': expected a list of two titles"),
        ({"pages": [MOON, SEA], "ambiguous": {"M": ["Moon", "Sun"]}}, "ambiguous: 'M': 'Sun' must be a page"),
        ({"pages": [MOON, SEA], "ambiguous": {"Moon": ["Moon", "Moon (sea)"]}}, "and 'Moon' must not"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path, data, message):
    with pytest.raises(UserError) as raised:
        offline(tmp_path, data)
    assert str(tmp_path / "pages.json") in str(raised.value)
    assert message in str(raised.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match=r"none\.json: cannot be read as JSON"):
        OfflineFile(tmp_path / "none.json")
