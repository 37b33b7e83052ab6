"""The act classifier: its input by hand, reading that depends on no batch, and every way to name a wrong classifier."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards import intent as classifier
from rlhf_dialog.rewards.intent import Intent, class_logits
from tests.parts.classifiers import CLS, LETTERS, SEP, letters, save_classifier, word_tokenizer
from tests.parts.tiny import byte_tokenizer

A, B, C, D, E, F = range(4, 10)


def some_dialogues():
    lengths = [3, 9, 1, 6, 2, 8, 5, 4, 7, 1, 9, 0]
    return [Dialogue([letters(4, 50 + i), letters(5, i)], letters(n, 100 + i), act=1) for i, n in enumerate(lengths)]


@pytest.fixture(scope="module")
def foreign_folder(tmp_path_factory):
    return save_classifier(tmp_path_factory.mktemp("classifier") / "foreign")


@pytest.fixture(scope="module")
def next_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classifier") / "next"
    return save_classifier(folder, hidden_size=12, rlhf_dialog_input="pair", rlhf_dialog_target="next_act")


saved_model = cache(BertForSequenceClassification.from_pretrained)


def probabilities(folder, first, second):
    """By the saved model alone, of one pair of texts."""
    ids = [[LETTERS.index(letter) + 4 for letter in text.split()] for text in (first, second)]
    row = [CLS, *ids[0], SEP, *ids[1], SEP]
    types = torch.tensor([[0] * (len(ids[0]) + 2) + [1] * (len(ids[1]) + 1)])
    with torch.no_grad():
        logits = saved_model(folder).eval()(input_ids=torch.tensor([row]), token_type_ids=types).logits[0].double()
    return (logits.exp() / logits.exp().sum()).tolist()


@pytest.mark.parametrize("batch_size", [None, 5])
def test_classes_and_probabilities_are_those_of_the_saved_model(pair_folder, batch_size):
    dialogues = [replace(dialogue, act=1 + i % 4) for i, dialogue in enumerate(some_dialogues())]
    rows = [probabilities(pair_folder, d.prompt_turns[-1], d.response) for d in dialogues]
    classes = [row.index(max(row)) for row in rows]
    assert len(set(classes)) > 2  # else the test shows nothing
    reward = Intent(pair_folder, precision="fp32", intent_score="probability", batch_size=batch_size)
    assert reward.predict(dialogues) == classes
    assert reward.predict(dialogues[::-1]) == classes[::-1]
    assert reward(dialogues) == pytest.approx(
        [row[d.act - 1] for row, d in zip(rows, dialogues, strict=True)], rel=1e-4
    )
    assert reward.needs == ("act",)


def test_the_expected_act(pair_folder, next_folder):
    """The sum over acts of q(act | the last two turns) p(act | last turn, response); no reference is read."""
    dialogues = [replace(dialogue, act=None) for dialogue in some_dialogues()]
    dialogues.append(Dialogue(["a b"], "c"))  # a prompt of one turn
    dialogues.append(Dialogue(["f f", "a b", "d e"], "c"))
    reward, expected = Intent(pair_folder, precision="fp32", intent_score="expected", act_model=next_folder), []
    for dialogue in dialogues:
        before, last = ["", *dialogue.prompt_turns][-2:]
        q, p = probabilities(next_folder, before, last), probabilities(pair_folder, last, dialogue.response)
        expected.append(sum(a * b for a, b in zip(q, p, strict=True)))
    assert reward(dialogues) == pytest.approx(expected, rel=1e-4)
    assert max(expected) - min(expected) > 0.1
    assert reward.needs == ()
    assert len(reward.frozen_models()) == 2


def test_mistakes_of_the_score(pair_folder, next_folder):
    expected = {"intent_score": "expected"}
    for path, keys, told in (
        (pair_folder, {**expected, "act_model": pair_folder}, "act_model: .*target: act, but"),
        (next_folder, {}, "intent_model: .*target: next_act, but"),
        (pair_folder, {**expected, "act_model": "./nothing"}, "act_model: no such folder"),
    ):
        with pytest.raises(UserError, match=told):
            Intent(path, **keys)
    args = {"intent_model": pair_folder, "act_model": "someone/next"}
    assert Intent.model_paths(args) == {"act classifier": pair_folder, "next-act classifier": "someone/next"}


@pytest.mark.parametrize(
    ("setting", "ids", "types"),
    [("pair", [CLS, A, B, SEP, C, D, SEP], [0, 0, 0, 0, 1, 1, 1]), ("concat", [CLS, A, B, C, D, SEP], [0] * 6)],
)
def test_input_by_hand(pair_folder, foreign_folder, setting, ids, types):
    by_folder = Intent({"pair": pair_folder, "concat": foreign_folder}[setting])
    overridden = Intent({"pair": foreign_folder, "concat": pair_folder}[setting], intent_input=setting)
    for intent in (by_folder, overridden):
        (encoded,) = intent.encode([Dialogue(["f f f", "a b"], "c d")])
        assert encoded["input_ids"] == ids
        assert encoded["token_type_ids"] == types
        assert encoded["attention_mask"] == [1] * len(ids)


@pytest.mark.parametrize(
    ("setting", "last_turn", "response", "ids"),
    [
        ("pair", "f f a b", "c d e", [CLS, A, B, SEP, C, D, E, SEP]),
        ("pair", "f f a", "b b b c d", [CLS, SEP, B, B, B, C, D, SEP]),  # the response alone just fits
        ("pair", "f f a", "b c d e a b c", [CLS, SEP, B, C, D, E, A, SEP]),
        ("pair", "f f f f f f f f", "", [CLS, F, F, F, F, F, SEP, SEP]),
        ("concat", "f f a b", "c d e", [CLS, F, A, B, C, D, E, SEP]),
        ("concat", "f f a", "a b c d e f a b", [CLS, A, B, C, D, E, F, SEP]),
    ],
)
def test_truncation_takes_the_left_of_the_last_turn(tmp_path, setting, last_turn, response, ids):
    intent = Intent(save_classifier(tmp_path / "short", max_position_embeddings=8), setting)
    for _ in range(2):  # the second time after the tokenizer has been used for truncation
        (encoded,) = intent.encode([Dialogue(["e", last_turn], response)])
        assert encoded["input_ids"] == ids
    assert intent.predict([Dialogue(["e", last_turn], response)])[0] in range(4)


def test_the_longest_input_is_that_of_the_tokenizer_or_of_the_positions(tmp_path):
    """RoBERTa numbers positions from pad_token_id + 1, as 514 positions make 512 tokens."""
    assert Intent(save_classifier(tmp_path / "a")).max_length == 24  # the tokenizer says nothing
    assert Intent(save_classifier(tmp_path / "b", word_tokenizer(model_max_length=10))).max_length == 10
    sizes = {"vocab_size": 24, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    rest = {"num_attention_heads": 2, "num_labels": 4, "pad_token_id": 1, "max_position_embeddings": 14}
    RobertaForSequenceClassification(RobertaConfig(**sizes, **rest)).save_pretrained(tmp_path)
    inputs = ["input_ids", "attention_mask"]
    word_tokenizer(pad_token="[UNK]", model_input_names=inputs).save_pretrained(tmp_path)
    intent = Intent(str(tmp_path))
    dialogue = Dialogue([letters(20, 0)], letters(4, 1))
    assert intent.max_length == len(intent.encode([dialogue])[0]["input_ids"]) == 12
    assert intent.predict([dialogue])[0] in range(4)


def test_score_is_one_where_the_class_is_act_minus_one(pair_folder):
    intent, dialogues = Intent(pair_folder), some_dialogues()
    classes = intent.predict(dialogues)
    for act in (1, 2, 3, 4):
        for dialogue in dialogues:
            dialogue.act = act
        assert intent(dialogues) == [1.0 if found == act - 1 else 0.0 for found in classes]
    assert (intent.name, intent.needs) == ("intent", ("act",))
    with pytest.raises(UserError, match=r"1 of 13 .*no act"):
        intent([*dialogues, Dialogue(["a"], "b")])


def save_half(folder):
    sizes = {"vocab_size": 24, "hidden_size": 16, "num_attention_heads": 2, "num_labels": 4}
    BertForSequenceClassification(BertConfig(**sizes)).half().save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return str(folder)


def test_frozen_eval_fp32(tmp_path):
    intent = Intent(save_half(tmp_path)).move_to("cpu")
    assert not intent.model.training
    assert not any(weight.requires_grad for weight in intent.model.parameters())
    assert {weight.dtype for weight in intent.model.parameters()} == {torch.float32}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "wanted"), [("auto", torch.float16), ("bf16", torch.float16), ("fp32", torch.float32)]
)
def test_on_a_gpu_the_linear_layers_keep_the_type_of_their_checkpoint(tmp_path, precision, wanted, monkeypatch):
    intent = Intent(save_half(tmp_path), precision=precision)
    monkeypatch.setattr("rlhf_dialog.rewards.intent.bf16_is_faster", lambda device: device == "cuda")
    monkeypatch.setattr(intent.model, "to", lambda device: None)
    intent.move_to("cuda")
    assert intent.model.classifier.weight.dtype == wanted
    assert intent.model.bert.embeddings.word_embeddings.weight.dtype == torch.float32


def test_files_that_do_not_fit_together_are_refused(tmp_path):
    folder = save_classifier(tmp_path, type_vocab_size=1, rlhf_dialog_input="pair")  # its tokenizer has types 0 and 1
    with pytest.raises(UserError, match=r"intent_model: .* cannot be loaded as a classifier"):
        Intent(folder)


@pytest.mark.slow
def test_wrong_classifiers(tmp_path):
    def refused(folder):
        with pytest.raises(UserError) as caught:
            Intent(str(folder))
        assert str(caught.value).startswith("reward_class.args.intent_model: ")
        return str(caught.value)

    assert "has 3 classes" in refused(save_classifier(tmp_path / "three", num_labels=3))
    assert "rlhf_dialog_input 'both'" in refused(save_classifier(tmp_path / "both", rlhf_dialog_input="both"))
    assert "24 tokens" in refused(save_classifier(tmp_path / "b", vocab_size=20))
    assert "no pad token" in refused(save_classifier(tmp_path / "pad", word_tokenizer(pad_token=None)))

    headless = save_classifier(tmp_path / "headless")
    BertModel.from_pretrained(headless).save_pretrained(headless)
    assert "lacks 2 weights" in refused(headless)

    refused("")


# -- many texts


TEXTS = ["a", "How are you ?", "", "Bring the blue ladder to the old mill , please , and then call Ada .", "Yes ."]


def make_model(positions=128):
    tokenizer = byte_tokenizer()
    tokenizer.model_max_length = positions
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(
        vocab_size=len(tokenizer), num_labels=4, max_position_embeddings=positions, initializer_range=0.5, **sizes
    )
    return BertForSequenceClassification(config).eval(), tokenizer


def inputs_of(tokenizer, texts):
    encoded = tokenizer([f"{text}<eos>" for text in texts])
    return [{key: column[i] for key, column in encoded.items()} for i in range(len(texts))]


def test_logits_equal_those_of_one_text_at_a_time():
    model, tokenizer = make_model()
    inputs = inputs_of(tokenizer, TEXTS)
    alone = [model(**{key: torch.tensor([value]) for key, value in row.items()}).logits[0] for row in inputs]
    for batch_size in (1, 2, 3, 16):
        found = class_logits(model, tokenizer, inputs, batch_size, "fp32")
        torch.testing.assert_close(found, torch.stack(alone), rtol=1e-4, atol=1e-5)
    assert found.std(dim=0).min() > 1e-3  # the texts differ
    assert not found.requires_grad


def test_bf16_is_close_and_another_computation_and_auto_is_what_is_faster(monkeypatch):
    model, tokenizer = make_model()
    exact, rough = (class_logits(model, tokenizer, inputs_of(tokenizer, TEXTS), 2, word) for word in ("fp32", "bf16"))
    assert rough.dtype == torch.float32
    assert 0 < (exact - rough).abs().max() < 0.1
    for faster, same in ((True, rough), (False, exact)):
        monkeypatch.setattr(classifier, "bf16_is_faster", lambda device, faster=faster: faster)
        assert torch.equal(class_logits(model, tokenizer, inputs_of(tokenizer, TEXTS), 2, "auto"), same)


def test_padding_to_a_round_length_stays_within_the_positions():
    model, tokenizer = make_model(positions=21)
    long = inputs_of(tokenizer, ["x" * 19])  # 20 tokens, 21 positions: 24 would be too many
    assert len(long[0]["input_ids"]) == 20
    assert class_logits(model, tokenizer, long, 2, "fp32").shape == (1, 4)
