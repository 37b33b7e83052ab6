"""`make site`: every page is built without a warning, and loads nothing from another host."""

import json
import re
import sys

import pytest

from tests.parts.processes import ROOT, run_command

pytestmark = pytest.mark.slow
LOADS = re.compile(r"<(?:script|img|iframe|source)[^>]*(?:https?:)?//[^>]*>|<link[^>]*(?:https?:)?//[^>]*>")


def test_the_site_is_built_strictly_and_loads_nothing_from_other_hosts(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = run_command(*command, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    pages = {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "site").rglob("*.html")}
    names = {path.stem for path in (ROOT / "docs").rglob("*.md")}
    assert {f"{name}.html" for name in (*names, "index", "CONTRIBUTING", "REWARD_MODELS")} <= set(pages)
    assert {name: found for name, text in pages.items() if (found := LOADS.findall(text))} == {}
    assert 'href="RUNS.html"' in pages["index.html"]  # docs/RUNS.md in the README
    assert 'href="index.html#your-own-model"' in pages["EXTENDING.html"]  # ../README.md#your-own-model
    index = json.loads((tmp_path / "site" / "search" / "search_index.json").read_text(encoding="utf-8"))
    places = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {"RUNS.html", "CONFIG.html", "DATA.html"} <= places
    assert {place for place in places if place.startswith(("results/", "LOG"))} == set()
