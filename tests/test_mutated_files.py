"""Mutated files of every kind that a path accepts: they are read, or a UserError of one sentence says why."""

import shutil
from random import Random

import pytest

from rlhf_dialog.errors import UserError
from tests.parts.damage import wreck
from tests.parts.file_kinds import KINDS

QUICK = ("domain", "jsonl", "evaluation", "action list")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder with whole files of a kind, which are read."""
    made = {}

    def folder_of(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp("whole")
            KINDS[name].make(made[name])
        return made[name]

    return folder_of


def outcomes(name, whole, folder, seeds):
    """The number that was read, and what ended neither well nor with a UserError of a few words."""
    kind, read, wrong = KINDS[name], 0, []
    for seed in seeds:
        target = folder / str(seed)
        shutil.copytree(whole(name), target)
        files = sorted(path for pattern in kind.files for path in target.glob(pattern) if path.is_file())
        done = wreck(Random(seed).choice(files), seed)
        try:
            kind.read(target)
            read += 1
        except UserError as error:
            if len(str(error)) > 2000:
                wrong.append((seed, done, "long"))
        except Exception as error:
            wrong.append((seed, done, f"{type(error).__name__}: {error}"[:200]))
        shutil.rmtree(target)
    return read, wrong


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in KINDS]
)
def test_a_mutated_file_is_read_or_says_what_is_wrong(name, whole, tmp_path):
    shutil.copytree(whole(name), tmp_path / "whole")
    KINDS[name].read(tmp_path / "whole")
    read, wrong = outcomes(name, whole, tmp_path, range(20))
    assert wrong == []
    assert read < 20
