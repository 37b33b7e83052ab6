"""Dockerfile and workflow, which are not run here: what they name is there."""

import os
import re
import tomllib
from itertools import pairwise
from pathlib import Path

import yaml

from tests.parts.processes import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PIP = re.compile(r"^RUN python -m pip install (.*)$", re.MULTILINE)


def pip_lines(text: str) -> list[list[str]]:
    """The words after `pip install` of each such line, lines that go on joined."""
    return [line.replace('"', "").split() for line in PIP.findall(text.replace("\\\n", " "))]


def faults(words: list[str], folder: Path) -> list[str]:
    """What a pip line names that the project does not have."""
    found = []
    pinned = set()
    for option, value in pairwise(words):
        if option == "--constraint":
            path = folder / value
            lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
            pinned |= {line.partition("==")[0] for line in lines if "==" in line}
            found += [] if path.is_file() else [f"no file {value}"]
        if option == "--editable":
            extras = re.fullmatch(r"\.(?:\[(.*)\])?", value)
            named = (extras[1] or "").split(",") if extras else [value]
            found += [f"no extra {name}" for name in named if name and name not in PROJECT["optional-dependencies"]]
    last = words[-1]
    if words[-2] not in ("--editable", "--constraint", "--index-url") and last not in pinned:
        found.append(f"no pin of {last}")
    return found


def test_the_pip_lines_of_the_image_name_extras_and_pins_that_are_there():
    lines = pip_lines((ROOT / "Dockerfile").read_text(encoding="utf-8"))
    assert len(lines) == 2
    assert [fault for words in lines for fault in faults(words, ROOT)] == []
    assert all("--constraint" in words for words in lines)


def test_what_counts_as_a_fault():
    install = "RUN python -m pip install"
    text = (
        f'{install} --constraint constraints.txt \\\n  --editable ".[peft,lora]"\n{install} --constraint no.txt torch\n'
    )
    assert [faults(words, ROOT) for words in pip_lines(text)] == [
        ["no extra lora"],
        ["no file no.txt", "no pin of torch"],
    ]


def test_the_image_starts_the_command_that_is_installed_on_the_oldest_python_that_is_tested():
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    (entry,) = re.findall(r'^ENTRYPOINT \["(.*)"\]$', text, re.MULTILINE)
    assert entry in PROJECT["scripts"]
    assert f"FROM python:{PROJECT['requires-python'].removeprefix('>=')}-" in text
    assert "was not built" in text.splitlines()[2]


def test_what_a_checkout_holds_beside_the_project_is_not_copied():
    left_out = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    folders = {line.strip("/") for line in ignored if line.endswith("/") and not line.startswith("*")}
    assert {folder for folder in folders if folder not in left_out and f"**/{folder}" not in left_out} == set()
    assert ".git" in left_out


def test_the_workflow_runs_what_ci_runs():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    (job,) = workflow["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    (python,) = (step["with"]["python-version"] for step in job["steps"] if "setup-python" in step.get("uses", ""))
    assert python == PROJECT["requires-python"].removeprefix(">=")
