"""The folder of a relevance model: config.json, model.safetensors, the tokenizer, and bank.json with contexts as text."""

import json
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import safe_open
from safetensors.torch import load_model, save_model
from transformers import AutoTokenizer

from rlhf_dialog.data.learned_half import learned_half
from rlhf_dialog.errors import UserError
from rlhf_dialog.json_files import json_or, read_json
from rlhf_dialog.models.pretrained import load_pretrained, num_ids, readable
from rlhf_dialog.models.relevance import SPECIAL, RelevanceModel, RelevanceSizes

MARK, FORMAT = "rlhf_dialog_relevance", 1
KIND = "a relevance model"


def save_relevance(model: RelevanceModel, folder: Path) -> None:
    """Write the folder."""
    document = {MARK: FORMAT, **model.sizes.model_dump()}
    (folder / "config.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    (folder / "bank.json").write_text(json.dumps(model.bank, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    model.tokenizer.save_pretrained(folder)
    save_model(model, str(folder / "model.safetensors"))


def is_relevance_folder(path: str) -> bool:
    """Whether the config.json of a folder says that it holds a relevance model."""
    found = json_or(Path(path).expanduser() / "config.json", None)
    return isinstance(found, dict) and MARK in found


def load_relevance(path: str, key: str) -> RelevanceModel:
    """The frozen model of a folder, in eval mode; only safetensors and JSON are read.

    `key` is what named the path. Raises UserError when there is no such model, or its files do not fit together.
    """
    folder = Path(path).expanduser()
    if not is_relevance_folder(path):
        raise UserError(
            f"{key}: '{path}' is not the folder of a relevance model (a config.json with {MARK}); give what "
            "reward_models/train_relevance_model.py wrote"
        )
    sizes, bank = _read_sizes(folder, key), _read_bank(folder, key)
    tokenizer = load_pretrained(AutoTokenizer, path, key, trust_remote_code=False)
    special = tokenizer.convert_tokens_to_ids(list(SPECIAL))
    if special != list(range(len(SPECIAL))) or num_ids(tokenizer) > sizes.vocab_size:
        raise UserError(
            f"{key}: the tokenizer in '{path}' belongs to another model; give the whole folder of one training"
        )
    with readable(path, key, KIND):
        _check_shapes(sizes, tokenizer, folder / "model.safetensors")
        model = RelevanceModel(sizes, tokenizer, bank)
        load_model(model, str(folder / "model.safetensors"))
    if broken := [name for name, weights in model.named_parameters() if not weights.isfinite().all()]:
        raise UserError(
            f"{key}: '{path}' has NaN or infinite weights ({broken[0]}), with which every comparison is meaningless; train the "
            "model again, with a lower learning_rate if the training itself ended so"
        )
    model.learned_half = learned_half(folder)
    return model.eval().requires_grad_(False)


def _check_shapes(sizes: RelevanceSizes, tokenizer: Any, weights: Path) -> None:
    """Raises ValueError when config.json describes other weights, before it makes the program allocate them."""
    with torch.device("meta"):
        wanted = {name: [*tensor.shape] for name, tensor in RelevanceModel(sizes, tokenizer, []).state_dict().items()}
    with safe_open(str(weights), "pt") as file:
        found = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118  it is not a dict
    if wrong := sorted(name for name in wanted | found if wanted.get(name) != found.get(name)):
        shapes = f"{found.get(wrong[0], 'missing')}, and by config.json {wanted.get(wrong[0], 'unknown')}"
        raise ValueError(f"{wrong[0]} is {shapes}")


def _read_json(path: Path, key: str) -> Any:
    return read_json(path, f"{key}: {path} cannot be read as JSON (", "); give the whole folder of a training")


def _read_sizes(folder: Path, key: str) -> RelevanceSizes:
    document = _read_json(folder / "config.json", key)
    if (version := document.pop(MARK)) != FORMAT:
        raise UserError(f"{key}: {folder}/config.json has format {version!r:.40}, this program reads {FORMAT}")
    try:
        return RelevanceSizes.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "its values"
        raise UserError(f"{key}: {folder}/config.json: {place}: {first['msg']}; train the model again") from error


def _read_bank(folder: Path, key: str) -> list[list[str]]:
    bank = _read_json(folder / "bank.json", key)
    lists = isinstance(bank, list) and bool(bank) and all(isinstance(turns, list) and turns for turns in bank)
    if not lists or not all(isinstance(turn, str) for turns in bank for turn in turns):
        raise UserError(
            f"{key}: {folder}/bank.json must be a list of contexts, each a list of texts; train the model again"
        )
    return bank
