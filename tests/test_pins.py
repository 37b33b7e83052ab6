"""constraints.txt and the script that writes it; pip is replaced, so nothing is asked of a package index."""

import re
import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts import pins
from tests.parts.processes import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LINES = pins.FILE.read_text(encoding="utf-8").splitlines()


def test_the_file_pins_what_the_project_asks_for_within_its_limits(capsys):
    assert pins.main(["check"]) == 0, capsys.readouterr().out
    extras = PROJECT["project"]["optional-dependencies"]
    for python in pins.PYTHONS:
        pinned = pins.pins_in(LINES, python)
        assert len(pinned) > 100
        for need in map(Requirement, [one for some in extras.values() for one in some]):
            assert pinned[canonicalize_name(need.name)] in need.specifier, need


def test_a_need_without_a_pin_and_a_pin_outside_of_its_limits_are_problems(monkeypatch, capsys, tmp_path):
    file = tmp_path / "constraints.txt"
    monkeypatch.setattr(pins, "FILE", file)
    monkeypatch.setattr(pins, "LEFT_OUT", {})
    monkeypatch.setattr(pins, "requirements", lambda: ["page[all]>=2"])
    inside = {"page": ['more>3 ; extra == "all"', 'not ; extra == "no"', 'new ; python_version >= "3.14"'], "more": []}
    monkeypatch.setattr(pins, "needs_here", lambda name, version: [pins.Requirement(text) for text in inside[name]])
    file.write_text("page==2.1\nmore==3.0\n", encoding="utf-8")
    assert pins.main(["check"]) == 1
    more = [f"Python 3.{minor}: page asks for more>3, but 3.0 is pinned" for minor in (11, 12, 13, 14)]
    new = "Python 3.14: new, which page asks for, is not pinned in constraints.txt; run make pins"
    assert capsys.readouterr().out.splitlines() == [*more, new]


def test_the_needs_of_a_package_are_those_of_the_pinned_version():
    version = pins.metadata.version("packaging")
    assert pins.needs_here("packaging", "0.0") == pins.needs_here("no-such-package", "1") == []
    assert [need.name for need in pins.needs_here("pytest", pins.metadata.version("pytest"))].count("packaging") == 1
    assert pins.needs_here("packaging", version) == []


def test_every_line_is_an_exact_version():
    for line in LINES:
        if not line.startswith("#"):
            assert re.fullmatch(r"[a-z0-9-]+==[\w.!]+( ; python_version == \"3\.1[1-4]\")?(  # .+)?", line), line


def test_one_oldest_python_is_named_everywhere():
    assert PROJECT["project"]["requires-python"] == ">=3.11"
    assert (PROJECT["tool"]["ruff"]["target-version"], PROJECT["tool"]["mypy"]["python_version"]) == ("py311", "3.11")
    assert pins.PYTHONS[0] == "3.11"
    for page in ("README.md", "CONTRIBUTING.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        assert set(re.findall(r"Python (\d\.\d+) or newer", text)) == {"3.11"}, page


def installs(**versions: str) -> list[dict]:
    return [{"metadata": {"name": name, "version": version}} for name, version in versions.items()]


def test_a_package_with_other_versions_on_other_pythons_gets_markers_and_is_read_with_them():
    versions = {
        "3.11": {"b": "1", "a": "2"},
        "3.12": {"b": "1"},
        "3.13": {"b": "1", "c": "3"},
        "3.14": {"b": "2", "c": "3"},
    }
    text = pins.text_of(versions)
    assert [line for line in text.splitlines() if line[0] in "abc"] == [
        "a==2",
        *(f'b==1 ; python_version == "3.{minor}"' for minor in (11, 12, 13)),
        'b==2 ; python_version == "3.14"',
        "c==3",
    ]
    without = dict.fromkeys(pins.LEFT_OUT)
    for python, wanted in versions.items():
        read = {name: one for name, one in pins.pins_in(text.splitlines(), python).items() if name not in without}
        assert read == {"a": "2", "c": "3"} | wanted


def test_needs_that_only_the_other_python_has_are_asked_for(monkeypatch):
    """pip reads markers for the Python that it runs on, whatever --python-version says."""
    asked_for = []

    def dry_run(python, asked, pinned, *options):
        asked_for.append((asked, pinned, options))
        needs = ['audio ; python_version >= "3.12"', 'old ; python_version < "3"', 'more ; extra == "all"', "plain"]
        page = {"metadata": {"name": "Page", "version": "6.0+cpu", "requires_dist": needs}}
        return [page] if asked == ["page"] else installs(audio="0.2")

    monkeypatch.setattr(pins, "dry_run", dry_run)
    monkeypatch.setattr(pins, "requirements", lambda: ["page"])
    monkeypatch.setattr(pins, "RUNNING", "3.11")
    assert pins.resolve("3.14", []) == {"page": "6.0", "audio": "0.2"}
    assert asked_for == [(["page"], {}, ()), (["audio"], {"page": "6.0"}, ("--ignore-requires-python",))]


def test_what_pip_would_install_in_another_version_is_a_problem(monkeypatch, capsys, tmp_path):
    file = tmp_path / "constraints.txt"
    file.write_text('a==1\nb==1 ; python_version == "3.14"\n', encoding="utf-8")
    monkeypatch.setattr(pins, "FILE", file)
    monkeypatch.setattr(pins, "requirements", lambda: ["a"])
    monkeypatch.setattr(pins, "dry_run", lambda python, asked, pinned: installs(a="1", b="1"))
    assert pins.main(["resolve"]) == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed == [f"Python 3.{n}: b 1 is not pinned in constraints.txt; run make pins" for n in (11, 12, 13)]
    assert pins.main(["write"]) == 0
    assert pins.main(["resolve"]) == 0
    assert "a==1\nb==1\n" in file.read_text(encoding="utf-8")


def test_versions_that_do_not_fit_end_with_1_and_pips_words(monkeypatch, capsys):
    def dry_run(python, asked, pinned):
        raise pins.Unresolved(f"Python {python}: pip cannot resolve constraints.txt\nno wheel of b")

    monkeypatch.setattr(pins, "dry_run", dry_run)
    assert pins.main(["resolve"]) == 1
    assert capsys.readouterr().err == "Python 3.11: pip cannot resolve constraints.txt\nno wheel of b\n"
