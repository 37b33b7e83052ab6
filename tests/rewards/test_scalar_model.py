"""Outputs by the library's own model, one row at a time; OpenRLHF's form, made by hand; and every folder that is refused."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards import scalar_model
from rlhf_dialog.rewards.scalar_model import ScalarModel, ScalarOptions
from tests.parts.scalars import KINDS, save_scalar
from tests.parts.tiny import CHATML, byte_tokenizer, chat_tokenizer

DIALOGUES = [Dialogue(["a b"] * (i % 3), "c d e " * i) for i in (3, 0, 5, 1, 7, 2, 40)]


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_those_of_each_row_alone(tmp_path, kind):
    folder = save_scalar(tmp_path, kind)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    scalar = ScalarModel(folder, "key", ScalarOptions(input_form="dialogue"))
    expected = []
    for dialogue in DIALOGUES:
        ids = torch.tensor([scalar.input.encode(dialogue)["input_ids"]])
        with torch.no_grad():
            expected.append(model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.item())
    assert max(expected) - min(expected) > 0.1  # else the test shows nothing
    for size in (1, 3, 8):
        scalar.options = ScalarOptions(size, input_form="dialogue")
        assert scalar.outputs(DIALOGUES) == pytest.approx(expected, abs=1e-5)
        assert scalar.outputs(DIALOGUES[::-1]) == pytest.approx(expected[::-1], abs=1e-5)
    assert scalar.outputs([]) == []


@pytest.mark.parametrize(("head", "template"), [("score", None), ("value_head", None), ("value_head", CHATML)])
def test_a_folder_in_openrlhfs_form(tmp_path, head, template):
    """Made by hand, not by OpenRLHF: a trunk, a head of the name in `value_head_prefix`, `mean` and `std`; pad = eos.

    Its texts end with a space and the end-of-text token, in place of line ends.
    """
    tokenizer = chat_tokenizer(template)
    tokenizer.pad_token = tokenizer.eos_token
    folder = save_scalar(tmp_path, "llama", tokenizer=tokenizer)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    weights = load_file(tmp_path / "model.safetensors")
    weights[f"{head}.weight"] = weights.pop("score.weight")
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    config = {k: v for k, v in config.items() if k not in ("id2label", "label2id")}  # without them, two labels
    config |= {"architectures": ["RewardModel"], "value_head_prefix": head, "mean": 0.5, "std": 2.0}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    scalar = ScalarModel(folder, "key")
    assert scalar.normalisation(None) == (0.5, 2.0)
    dialogues = [Dialogue(["Hi ."], "Hello ."), Dialogue(["Hi .", "So ?"], "No .")]
    for dialogue, found in zip(dialogues, scalar.outputs(dialogues), strict=True):
        turns = [*dialogue.prompt_turns, dialogue.response]
        roles = ["assistant", "user", "assistant"][-len(turns) :]
        chat = "".join(f"<|im_start|>{role}\n{turn}<|im_end|>\n" for role, turn in zip(roles, turns, strict=True))
        text = (chat.rstrip("\n") if template else "\n".join(turns)) + " <eos>"
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        with torch.no_grad():  # the head at the last token, which is the end-of-text token
            hidden = model.model(torch.tensor([ids])).last_hidden_state[0, -1]
            assert found == pytest.approx(model.score(hidden).item(), abs=1e-5)


def test_frozen_eval_fp32_padded_on_the_right(tmp_path):
    tokenizer = byte_tokenizer()
    tokenizer.padding_side = "left"
    scalar = ScalarModel(save_scalar(tmp_path, "gpt2", tokenizer=tokenizer, dtype="float16"), "key")
    assert not scalar.model.training
    assert not any(p.requires_grad for p in scalar.model.parameters())
    assert {p.dtype for p in scalar.model.parameters()} == {torch.float32}
    batch = scalar_model.pad_right([{"input_ids": [1, 2]}, {"input_ids": [3] * 9}], 7, 64)
    assert batch["input_ids"].tolist() == [[1, 2, *[7] * 14], [*[3] * 9, *[7] * 7]]
    assert batch["attention_mask"].sum(dim=1).tolist() == [2, 9]
    assert scalar_model.pad_right([{"input_ids": [1] * 5}], 7, 6)["input_ids"].shape == (1, 6)


def edit(folder, **keys):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | keys), encoding="utf-8")


def change_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def as_pickle(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def without_head(folder):
    change_weights(folder, lambda weights: weights.pop("score.weight"))


def with_nan(folder):
    change_weights(folder, lambda weights: weights["score.weight"].fill_(float("nan")))


@pytest.mark.parametrize(
    ("config", "damage", "words"),
    [
        ({"num_labels": 2}, None, "has 2 labels"),
        ({"vocab_size": 100, "pad_token_id": 0}, None, "has 259 tokens, but the model's embedding only 100 rows"),
        ({}, without_head, r"no weights for score\.weight"),
        ({}, with_nan, r"gives \[nan, nan, nan\]"),
        ({}, as_pickle, "no safetensors weights"),
    ],
)
def test_folders_that_cannot_be_used(tmp_path, config, damage, words):
    folder = save_scalar(tmp_path, **config)
    if damage:
        damage(tmp_path)
    with pytest.raises(UserError, match=words):
        ScalarModel(folder, "key")


@pytest.mark.parametrize(
    ("keys", "words"),
    [({"std": 0.0, "mean": 1.0}, "std 0.0"), ({"mean": 1.0}, "std None"), ({"mean": "a", "std": 1}, "mean 'a'")],
)
def test_a_stored_mean_and_deviation_that_cannot_be_used(tmp_path, keys, words):
    folder = save_scalar(tmp_path)
    edit(tmp_path, **keys)
    scalar = ScalarModel(folder, "key")
    assert scalar.normalisation(False) == (0.0, 1.0)
    with pytest.raises(UserError, match=words):
        scalar.normalisation(None)


def test_texts_that_follow_each_other_without_a_separator(tmp_path):
    """As TRL joins a prompt and a reply that are texts."""
    folder = save_scalar(tmp_path)
    scalar = ScalarModel(folder, "key", ScalarOptions(turn_separator=""))
    ids = scalar.input.encode(Dialogue(["Hi ."], "Hello ."))["input_ids"]
    assert scalar.tokenizer.decode(ids) == "Hi .Hello .<eos>"
    with pytest.raises(UserError, match=r"reward_class\.args\.turn_separator: '' leaves nothing between turns"):
        ScalarModel(folder, "key", ScalarOptions(input_form="dialogue", turn_separator=""))


def test_a_template_that_can_think_is_written_as_its_training_wrote_it(tmp_path):
    """TRL leaves `enable_thinking` out, so the template's own default counts; this package trains with false."""
    template = "{% if enable_thinking is not defined or enable_thinking %}/think {% endif %}" + CHATML
    folder = save_scalar(tmp_path, tokenizer=chat_tokenizer(template), max_position_embeddings=200)
    scalar = ScalarModel(folder, "key")
    messages = [{"role": "user", "content": "Hi ."}, {"role": "assistant", "content": "So ."}]
    ids = scalar.tokenizer.apply_chat_template(messages, return_dict=True)["input_ids"]
    assert scalar.input.encode(Dialogue(["Hi ."], "So ."))["input_ids"] == ids
    edit(tmp_path, rlhf_dialog_input="chat_template")
    own = ScalarModel(folder, "key").input.encode(Dialogue(["Hi ."], "So ."))["input_ids"]
    assert scalar.tokenizer.decode(ids) == "/think " + scalar.tokenizer.decode(own)


def test_a_form_that_nobody_knows(tmp_path):
    folder = save_scalar(tmp_path)
    with pytest.raises(UserError, match=r"reward_class\.args\.input_form: 'prose' is not one of dialogue"):
        ScalarModel(folder, "key", ScalarOptions(input_form="prose"))
    edit(tmp_path, rlhf_dialog_input="verse")
    with pytest.raises(UserError, match=r"key: rlhf_dialog_input in the config\.json of '.*': 'verse'"):
        ScalarModel(folder, "key")
