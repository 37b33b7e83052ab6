"""Configurations of a test: the fixture `write`, a small one, and what is said of a wrong one."""

from pathlib import Path

import pytest

from rlhf_dialog.config.loading import load_config
from rlhf_dialog.config.schema import Config
from rlhf_dialog.errors import UserError

SMALL = "model_path: m\nenv: {args: {data_path: d}}\nreward_class: {id: LengthMatch}\n"


@pytest.fixture
def write(tmp_path):
    def write(text: str | bytes, name: str = "run.yaml") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def message(path: Path, overrides=None) -> str:
    with pytest.raises(UserError) as error:
        load_config(path, overrides)
    return str(error.value)


def settings(**keys):
    """A small configuration with these keys, built in Python."""
    base = {"model_path": "tiny", "env": {"args": {"data_path": "unused"}}, "reward_class": {"id": "Meteor"}}
    return Config(**{**base, **keys})
