"""Ceilings of what one iteration enters: how much a reader of `PPOTrainer.step` down to the loss may have to open."""

import subprocess
import sys

import pytest

from tests.parts.processes import ROOT

CEILINGS = [18, 3935, 44, 8310]  # files and lines of training/ and models/, then of the package; they only fall


@pytest.mark.thorough
def test_an_iteration_enters_no_more_files_and_lines_than_before():
    program = [sys.executable, "tests/whole_runs/count_iteration.py"]
    lines = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    words = lines[-1].replace(",", "").replace(";", "").split()
    counted = [int(word) for word in words if word.isdigit()]
    assert len(counted) == len(CEILINGS)
    assert all(number <= ceiling for number, ceiling in zip(counted, CEILINGS, strict=True)), lines[-1]
