"""A copy of the checkout in which one line at a time is another, and the result of the tests beside that line."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from experiments.line_changes.forked_pytest import PytestRun, forked_pytest
from experiments.line_changes.line_operators import with_line
from experiments.line_changes.places import Place, files_of_tests, place_now


@dataclass
class Request:
    """How the tests are run; what was learned of the tests on the way is kept here."""

    mark: str | None
    limit: float
    seconds_of_files: dict[str, float]
    failing_unchanged: list[str]  # tests that fail in the copy without any change


def copy_of(checkout: Path, folder: Path) -> Path:
    """Copies the files that git tracks, as they are in the checkout now."""
    tracked = subprocess.check_output(["git", "ls-files", "-z"], cwd=checkout, text=True).split("\0")
    for name in tracked:
        if name and (checkout / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(checkout / name, folder / name)
    return folder


class ChangedTree:
    """The copy: `result_of` leaves it as it was."""

    def __init__(self, tree: Path, request: Request) -> None:
        self.tree, self.request = tree, request
        self.texts = {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()}

    def result_of(self, change: dict) -> dict:
        """Outcome (noticed, survived, time limit, gone, no tests), and what it was found by."""
        place = place_now(self.tree, change)
        if place is None:
            return {"outcome": "gone"}
        tests = files_of_tests(self.tree, place.file, self.request.seconds_of_files)
        if not tests:
            return {"outcome": "no tests", "place": f"{place.file}:{place.line}"}
        run = self._run_until_it_is_the_change(place, change, tests)
        outcome = "noticed" if run.noticed_by else "time limit" if run.time_limit else "survived"
        result = {"outcome": outcome, "place": f"{place.file}:{place.line}", "seconds": run.seconds, "tests": tests}
        if self.request.mark is not None:
            result["mark"] = self.request.mark
        if run.time_limit:
            result["running"] = run.running
        return result if not run.noticed_by else {**result, "noticed_by": run.noticed_by, "message": run.message}

    def _run_until_it_is_the_change(self, place: Place, change: dict, tests: list[str]) -> PytestRun:
        """Runs again without a test that fails in the unchanged copy too."""
        while True:
            run = self._changed_run(place, change, tests)
            if not run.noticed_by or self._passes_unchanged(run.noticed_by):
                return run
            self.request.failing_unchanged.append(run.noticed_by)

    def _changed_run(self, place: Place, change: dict, tests: list[str]) -> PytestRun:
        path = self.tree / place.file
        lines = path.read_text(encoding="utf-8").splitlines()
        now = lines[place.line - 1]
        new = now[: len(now) - len(now.lstrip())] + change["new"].strip()
        self._write(path, with_line(lines, place.line, new).encode())
        run = self._run(tests)
        self._restore()
        self._write(path, self.texts[path])
        if not run.noticed_by and not run.time_limit:
            self.request.seconds_of_files.update(run.seconds_of_files)
        return run

    def _passes_unchanged(self, test: str) -> bool:
        run = self._run([test]) if "::" in test else self._run([test], "--collect-only")
        self._restore()
        return not run.noticed_by

    def _run(self, tests: list[str], *more: str) -> PytestRun:
        options = [*more, *(f"--deselect={test}" for test in self.request.failing_unchanged if "::" in test)]
        tests = [test for test in tests if test not in self.request.failing_unchanged]
        if self.request.mark is not None:
            options += ["-m", self.request.mark]
        return forked_pytest(self.tree, tests, options, self.request.limit)

    def _write(self, path: Path, text: bytes) -> None:
        """Writes the source, and drops its compiled form: it is told apart by seconds and size alone."""
        path.write_bytes(text)
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
            compiled.unlink()

    def _restore(self) -> None:
        """Removes what tests left in the tree, and writes back what they damaged; compiled files stay."""
        for path in self.tree.rglob("*"):
            if "__pycache__" in path.parts or path in self.texts or path.is_dir():
                continue
            path.unlink()
        for path, text in self.texts.items():
            if not path.exists() or path.read_bytes() != text:
                self._write(path, text)
        shutil.rmtree(self.tree.parent / f"{self.tree.name}.tests", ignore_errors=True)
