"""YAML files of a test: the fixture `write`, a small configuration, what is said of a wrong one. `from configs import SMALL`."""

from pathlib import Path

import pytest

from rlhf_dialog.config.loading import (
    load_config,
)
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
