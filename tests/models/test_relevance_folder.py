import json

import pytest
import torch
from relevance_models import BANK, letter_model, save_letters
from safetensors.torch import load_file, save_file

from rlhf_dialog.errors import UserError
from rlhf_dialog.models.relevance_folder import is_relevance_folder, load_relevance


@pytest.mark.parametrize("architecture", ["bag", "convolution", "cross_encoder"])
def test_a_saved_model_scores_as_before(architecture, tmp_path):
    path = save_letters(tmp_path, architecture, seed=3)
    loaded, model = load_relevance(path, "key"), letter_model(architecture, seed=3)
    question = [["a b", "c"], ["d"]], ["c a", "e"], torch.tensor([[0, 1], [1, 0]])
    assert torch.equal(loaded.scores(*question), model.scores(*question))
    assert loaded.bank == BANK
    assert not loaded.training
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    assert is_relevance_folder(path)
    assert {file.suffix for file in tmp_path.iterdir()} == {".json", ".safetensors"}


def edit(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | values), encoding="utf-8")


def fewer_weights(folder):
    weights = load_file(folder / "model.safetensors")
    weights.pop("members.0.log_scale")
    save_file(weights, folder / "model.safetensors")


def broken_weights(folder):
    """One NaN: with it no other prompt scores higher, so that a judge would find every reply's own prompt."""
    weights = load_file(folder / "model.safetensors")
    weights["members.1.of_context.bias"][0] = float("nan")
    save_file(weights, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "config.json").unlink(), "not the folder of a relevance model"),
        (lambda folder: (folder / "bank.json").unlink(), "bank.json cannot be read"),
        (lambda folder: (folder / "bank.json").write_text('[["a"], [3]]'), "must be a list of contexts"),
        (lambda folder: (folder / "bank.json").write_text("[]"), "must be a list of contexts"),
        (lambda folder: edit(folder / "config.json", rlhf_dialog_relevance=99), "format 99"),
        (lambda folder: edit(folder / "config.json", members="many"), "members"),
        (lambda folder: edit(folder / "config.json", hidden_size=16), "cannot be loaded as a relevance model"),
        (lambda folder: edit(folder / "config.json", vocab_size=10), "belongs to another model"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"x" * 40), "cannot be loaded as a relevance model"),
        (fewer_weights, "cannot be loaded as a relevance model"),
        (broken_weights, "has NaN or infinite weights"),
    ],
)
def test_a_damaged_folder_is_the_users_error(damage, words, tmp_path):
    path = save_letters(tmp_path)
    damage(tmp_path)
    with pytest.raises(UserError, match=words) as error:
        load_relevance(path, "reward_class.args.model")
    assert str(error.value).startswith("reward_class.args.model: ")


def test_a_model_of_before_copied_turns_has_two(tmp_path):
    path = save_letters(tmp_path, seed=3, copied_turns=2)
    document = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert document.pop("copied_turns") == 2
    (tmp_path / "config.json").write_text(json.dumps(document), encoding="utf-8")
    question = [["a b", "c"], ["d"]], ["c a", "e"], torch.tensor([[0, 1], [1, 0]])
    assert torch.equal(load_relevance(path, "key").scores(*question), letter_model(seed=3).scores(*question))


def test_a_config_that_asks_for_more_memory_than_there_is(tmp_path):
    """4 TB of weights beside a file of some kilobytes: refused by the shapes, and not when the memory is gone."""
    path = save_letters(tmp_path)
    edit(tmp_path / "config.json", members=64, hidden_size=16384, context_size=1000)
    with pytest.raises(UserError, match=r"embedding.weight is \[24, 8\], and by config.json \[24, 16384\]"):
        load_relevance(path, "reward_class.args.model")


def test_other_folders_are_none(tmp_path):
    assert not is_relevance_folder(str(tmp_path / "nowhere"))
    (tmp_path / "config.json").write_text("[", encoding="utf-8")
    assert not is_relevance_folder(str(tmp_path))
