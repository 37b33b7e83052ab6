"""Pins of every package that is installed, for Python 3.11 to 3.14.

python scripts/pins.py check    what the project and the packages installed here ask for is pinned, within its limits (CI)
python scripts/pins.py resolve  pip's dry run for each Python, from wheels alone, installs nothing that is not pinned
python scripts/pins.py write    by the same dry run: what constraints.txt pins stays, what is missing is added; --upgrade:
                                the newest versions
"""

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "constraints.txt"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"
LEFT_OUT = {  # of the dry run: the version, and why
    "rouge-score": ("0.1.2", "no wheel"),
    "deepspeed": ("0.19.8", "no wheel"),
    "mkdocs": ("1.6.1", "make site"),
    "mkdocs-material": ("9.8.1", "make site"),
    "pymdown-extensions": ("13.1", "make site, from Python 3.11.5 on"),
}
NEEDED_BY_THEM = ("absl-py", "nltk", "numpy", "six")  # by rouge-score, which the quickstart installs
HEAD = """\
# Exact versions that were tested together (Python 3.11), and resolve for Python {first} to {last} from wheels alone.
# The Makefile installs with them. Written by `make pins`.
"""
Pins = dict[str, str]  # canonical name -> version


class Unresolved(Exception):
    """pip finds no versions that fit together; its words."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["check", "resolve", "write"])
    parser.add_argument("--upgrade", action="store_true", help="write: forget the versions that the file pins")
    options = parser.parse_args(argv)
    lines = [] if options.upgrade else FILE.read_text(encoding="utf-8").splitlines()
    if options.command == "check":
        problems = [problem for python in PYTHONS for problem in unmet(python, lines)]
        print("\n".join(problems) or f"{FILE.name} pins what is asked for on Python {', '.join(PYTHONS)}")
        return 1 if problems else 0
    try:
        with ThreadPoolExecutor(len(PYTHONS)) as pool:
            resolved = dict(zip(PYTHONS, pool.map(lambda python: resolve(python, lines), PYTHONS), strict=True))
    except Unresolved as error:
        print(error, file=sys.stderr)
        return 1
    if options.command == "write":
        FILE.write_text(text_of(resolved), encoding="utf-8")
        print(f"wrote {FILE.name}: {len(text_of(resolved).splitlines()) - HEAD.count(chr(10))} pins")
        return 0
    problems = [problem for python in PYTHONS for problem in unpinned(python, lines, resolved[python])]
    print(
        "\n".join(problems) or f"{FILE.name} resolves for Python {', '.join(PYTHONS)}: {len(resolved['3.11'])} packages"
    )
    return 1 if problems else 0


def requirements() -> list[str]:
    """What the project and its extra `dev` ask for, without what is left out."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    kept = [one for one in asked if canonicalize_name(Requirement(one).name) not in LEFT_OUT]
    return [*kept, *NEEDED_BY_THEM]


def _holds(need: Requirement, python: str, extra: str = "") -> bool:
    """Whether the marker holds for this Python; pip itself would ask the one that runs, whatever its --python-version."""
    asked = {"python_version": python, "python_full_version": f"{python}.0", "extra": extra}
    return need.marker is None or need.marker.evaluate(asked)


def pins_in(lines: Iterable[str], python: str) -> Pins:
    """The pins of the file that hold for this Python."""
    pins: Pins = {}
    for line in lines:
        if text := line.partition("#")[0].strip():
            pin = Requirement(text)
            if _holds(pin, python):
                pins[canonicalize_name(pin.name)] = str(pin.specifier).removeprefix("==")
    return pins


def unmet(python: str, lines: list[str]) -> list[str]:
    """A line for each need of the project, or of a package installed here in its pinned version, that no pin meets."""
    pins, problems = pins_in(lines, python), []
    needs = [("the project", Requirement(text)) for text in [*requirements(), *LEFT_OUT]]
    seen = set()
    for asker, need in needs:  # grows while it is read
        name = canonicalize_name(need.name)
        if name not in pins:
            problems.append(
                f"Python {python}: {name}, which {asker} asks for, is not pinned in {FILE.name}; run make pins"
            )
        elif pins[name] not in need.specifier:
            problems.append(f"Python {python}: {asker} asks for {name}{need.specifier}, but {pins[name]} is pinned")
        elif name not in LEFT_OUT and (key := (name, *sorted(need.extras))) not in seen:
            seen.add(key)
            needs += [(name, inner) for inner in needs_here(name, pins[name]) if _asked(inner, python, need.extras)]
    return problems


def _asked(need: Requirement, python: str, extras: Iterable[str]) -> bool:
    return any(_holds(need, python, extra) for extra in ("", *extras))


def needs_here(name: str, version: str) -> list[Requirement]:
    """The needs of a package; none where it is not installed here in this version."""
    try:
        package = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return []
    same = Version(package.version).public == version
    return [Requirement(text) for text in package.requires or ()] if same else []


def resolve(python: str, lines: list[str]) -> Pins:
    """The versions that pip would install for this Python. Raises Unresolved."""
    pins = {name: version for name, version in pins_in(lines, python).items() if name not in LEFT_OUT}
    installs = dry_run(python, requirements(), pins)
    while missing := sorted(needs_of_this_python_alone(installs, python)):  # pip refuses them on the Python that runs
        installs += dry_run(python, missing, pins | versions(installs), "--ignore-requires-python")
    return versions(installs)


def versions(installs: list[dict[str, Any]]) -> Pins:
    """The version of each package, without what an index adds to it (+cpu)."""
    pairs = ((one["metadata"]["name"], one["metadata"]["version"]) for one in installs)
    return {canonicalize_name(name): Version(version).public for name, version in pairs}


def needs_of_this_python_alone(installs: list[dict[str, Any]], python: str) -> Iterable[str]:
    """The needs whose marker holds for this Python, but not for the one that runs, so that pip has left them out."""
    known = versions(installs)
    for need in (Requirement(text) for one in installs for text in one["metadata"].get("requires_dist", ())):
        if canonicalize_name(need.name) not in known and _holds(need, python) and not _holds(need, RUNNING):
            need.marker = None
            yield str(need)


def dry_run(python: str, asked: list[str], pins: Pins, *options: str) -> list[dict[str, Any]]:
    """What pip reports that it would install. Raises Unresolved."""
    with tempfile.TemporaryDirectory() as folder:
        wanted, pinned, report = (
            Path(folder) / name for name in ("requirements.txt", "constraints.txt", "report.json")
        )
        wanted.write_text("\n".join(asked), encoding="utf-8")
        pinned.write_text("\n".join(f"{name}=={version}" for name, version in pins.items()), encoding="utf-8")
        words = [sys.executable, "-P", "-m", "pip", "install", "--dry-run", "--ignore-installed"]
        words += [
            "--only-binary=:all:",
            "--python-version",
            python,
            "--target",
            folder,
            "--report",
            str(report),
            *options,
        ]
        done = subprocess.run(
            [*words, "-r", str(wanted), "-c", str(pinned)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            words = [
                *done.stdout.splitlines()[-15:],
                *(line for line in done.stderr.splitlines() if "WARNING" not in line),
            ]
            raise Unresolved("\n".join([f"Python {python}: pip cannot resolve {FILE.name}", *words]))
        installs: list[dict[str, Any]] = json.loads(report.read_text(encoding="utf-8"))["install"]
        return installs


def text_of(resolved: dict[str, Pins]) -> str:
    """The file: one line a package, or one a version with the Pythons that need it."""
    lines = [f"{name}=={version}  # left out of the dry run: {why}" for name, (version, why) in LEFT_OUT.items()]
    for name in sorted({name for pins in resolved.values() for name in pins}):
        of_pythons = {python: pins[name] for python, pins in resolved.items() if name in pins}
        versions = set(of_pythons.values())
        if len(versions) == 1:
            lines.append(f"{name}=={versions.pop()}")
        else:
            lines += [f'{name}=={version} ; python_version == "{python}"' for python, version in of_pythons.items()]
    return HEAD.format(first=PYTHONS[0], last=PYTHONS[-1]) + "\n".join(sorted(lines)) + "\n"


def unpinned(python: str, lines: list[str], resolved: Pins) -> Iterable[str]:
    """A line for each package that pip would install in a version that the file does not pin."""
    pins = pins_in(lines, python)
    for name, version in sorted(resolved.items()):
        if pins.get(name) != version:
            yield f"Python {python}: {name} {version} is not pinned in {FILE.name}; run make pins"


if __name__ == "__main__":
    sys.exit(main())
