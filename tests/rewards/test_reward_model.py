"""RewardModel: what it reads, by hand; outputs by the library's own model, one row at a time; the arithmetic behind them."""

import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, BertConfig

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards import RewardError, RewardModel, Scorer, build_reward, scalar_model
from rlhf_dialog.rewards.base import models_inside, needs_device
from rlhf_dialog.rewards.composite import model_paths
from rlhf_dialog.rewards.scalar_model import RewardInput, ScalarModel, ScalarOptions, reads_in_pairs, trained_form
from rlhf_dialog.rewards.scoring import metrics_of
from tests.parts.classifiers import CLS, SEP, word_tokenizer
from tests.parts.poisoned import edit
from tests.parts.scalars import KINDS, save_scalar
from tests.parts.tiny import CHATML, LLAMA2, byte_tokenizer, chat_tokenizer

A, B, C, D = range(4, 8)
OPTIONS = ScalarOptions()
CHAT = ("chat_template", "chat_template")


# -- what it reads


def text_of(inputs, dialogue):
    return inputs.tokenizer.decode(inputs.encode(dialogue)["input_ids"], skip_special_tokens=False)


def marked(role, text):
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


@pytest.mark.parametrize(
    ("form", "separator", "tokenizer", "plain", "behind_system"),
    [
        ("dialogue", "<EOU>", byte_tokenizer(), "a<EOU> b<EOU> c<EOU>", "S<EOU> a<EOU> c<EOU>"),
        ("dialogue", "##", byte_tokenizer(), "a ## b ## c ##", "S ## a ## c ##"),
        ("dialogue", "[SEP]", word_tokenizer(), "[CLS] a [SEP] b [SEP] c [SEP]", None),
        ("text", "\n", byte_tokenizer(), "a\nb\nc<eos>", "a\nc<eos>"),
        ("text", " ", chat_tokenizer(), "<s>a b c<eos>", "<s>a c<eos>"),
        ("pair", " ", word_tokenizer(), "[CLS] a b [SEP] c [SEP]", "[CLS] a [SEP] c [SEP]"),
        (*CHAT, chat_tokenizer(CHATML), None, marked("system", "S") + marked("user", "a") + marked("assistant", "c")),
        (*CHAT, chat_tokenizer(LLAMA2), "<s>[INST] b [/INST] c <eos>", "<s>[INST] S\n\na [/INST] c <eos>"),
    ],
)
def test_each_form_by_hand(form, separator, tokenizer, plain, behind_system):
    """In LLAMA2's template a user begins, so the oldest turn goes; it has no place for a system message."""
    inputs = RewardInput(tokenizer, form, separator, 200)
    if plain is not None:
        assert text_of(inputs, Dialogue(["a", "b"], "c")) == plain
    if behind_system is not None:
        assert text_of(inputs, Dialogue(["a"], "c", system="S")) == behind_system


def test_a_chat_template_is_rendered_whole_as_trl_does():
    tokenizer = chat_tokenizer(CHATML)
    turns = zip(("user", "assistant", "user", "assistant"), "abcd", strict=True)
    messages = [{"role": role, "content": text} for role, text in turns]
    theirs = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True)["input_ids"]
    assert RewardInput(tokenizer, *CHAT, 200).encode(Dialogue(["a", "b", "c"], "d"))["input_ids"] == theirs
    with pytest.raises(UserError, match="no chat template"):
        RewardInput(byte_tokenizer(), *CHAT, 100)


def test_token_types_of_a_pair():
    found = RewardInput(word_tokenizer(), "pair", " ", 100).encode(Dialogue(["a"], ""))
    assert found == {"input_ids": [CLS, A, SEP, SEP], "token_type_ids": [0, 0, 0, 1]}


@pytest.mark.parametrize(
    ("max_length", "ids"),
    [
        (7, [CLS, A, SEP, B, SEP, C, SEP]),
        (6, [CLS, B, SEP, C, SEP]),  # the oldest turn goes as a whole
        (4, [CLS, SEP, C, SEP]),  # then tokens from the left, behind [CLS]
        (2, [CLS, SEP]),
    ],
)
def test_the_oldest_turns_are_cut_first(max_length, ids):
    inputs = RewardInput(word_tokenizer(), "dialogue", "[SEP]", max_length)
    assert inputs.encode(Dialogue(["a", "b"], "c"))["input_ids"] == ids


def test_a_system_message_is_not_cut():
    inputs = RewardInput(byte_tokenizer(), "dialogue", "<EOU>", 13)
    assert text_of(inputs, Dialogue(["b", "abcdefgh"], "c", system="S")) == "S<EOU> cdefgh<EOU> c<EOU>"


def test_marks_inside_a_turn_become_a_space_and_later_turns_are_read():
    inputs = RewardInput(byte_tokenizer(), "dialogue", "<EOU>", 100)
    assert text_of(inputs, Dialogue(["a <EOU> <eos> b"], "c<EOU>d")) == "a b<EOU> c d<EOU>"
    assert inputs.spoken("a  b") == "a  b"
    assert text_of(inputs, Dialogue([], "c")) == " c<EOU>"
    dialogue = Dialogue(["a"], "b").with_user_turn("c").with_reply("d").with_user_turn("never seen")
    assert text_of(inputs, dialogue) == text_of(inputs, Dialogue(["a", "b", "c"], "d"))


def test_which_form_a_folder_gets():
    assert trained_form(byte_tokenizer(), BertConfig()) == "text"
    assert trained_form(chat_tokenizer(), BertConfig()) == "chat_template"
    assert trained_form(chat_tokenizer(), BertConfig(rlhf_dialog_input="dialogue")) == "dialogue"
    assert reads_in_pairs(word_tokenizer())
    assert not reads_in_pairs(byte_tokenizer())


# -- its outputs


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_those_of_each_row_alone(tmp_path, kind):
    dialogues = [Dialogue(["a b"] * (i % 3), "c d e " * i) for i in (3, 0, 5, 1, 7, 2, 40)]
    folder = save_scalar(tmp_path, kind)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    scalar = ScalarModel(folder, "key", ScalarOptions(input_form="dialogue"))
    expected = []
    for dialogue in dialogues:
        ids = torch.tensor([scalar.input.encode(dialogue)["input_ids"]])
        with torch.no_grad():
            expected.append(model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.item())
    assert max(expected) - min(expected) > 0.1  # else the test shows nothing
    for size in (1, 3, 8):
        scalar.options = ScalarOptions(size, input_form="dialogue")
        assert scalar.outputs(dialogues) == pytest.approx(expected, abs=1e-5)
        assert scalar.outputs(dialogues[::-1]) == pytest.approx(expected[::-1], abs=1e-5)
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
    keys = {"architectures": ["RewardModel"], "value_head_prefix": head, "mean": 0.5, "std": 2.0}
    edit(tmp_path / "config.json", **keys, id2label={"0": "a", "1": "b"}, label2id={"a": 0, "b": 1})
    scalar = ScalarModel(folder, "key", OPTIONS)
    assert scalar.normalisation(None) == (0.5, 2.0)
    dialogues = [Dialogue(["Hi ."], "Hello ."), Dialogue(["Hi .", "So ?"], "No .")]
    for dialogue, found in zip(dialogues, scalar.outputs(dialogues), strict=True):
        turns = [*dialogue.prompt_turns, dialogue.response]
        roles = ["assistant", "user", "assistant"][-len(turns) :]
        chat = "".join(map(marked, roles, turns))
        text = (chat.rstrip("\n") if template else "\n".join(turns)) + " <eos>"
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        with torch.no_grad():  # the head at the last token, which is the end-of-text token
            hidden = model.model(torch.tensor([ids])).last_hidden_state[0, -1]
            assert found == pytest.approx(model.score(hidden).item(), abs=1e-5)


def test_frozen_eval_fp32_padded_on_the_right(tmp_path):
    tokenizer = byte_tokenizer()
    tokenizer.padding_side = "left"
    scalar = ScalarModel(save_scalar(tmp_path, "gpt2", tokenizer=tokenizer, dtype="float16"), "key", OPTIONS)
    assert not scalar.model.training
    assert {(p.dtype, p.requires_grad) for p in scalar.model.parameters()} == {(torch.float32, False)}
    batch = scalar_model.pad_right([{"input_ids": [1, 2]}, {"input_ids": [3] * 9}], 7, 64)
    assert batch["input_ids"].tolist() == [[1, 2, *[7] * 14], [*[3] * 9, *[7] * 7]]
    assert batch["attention_mask"].sum(dim=1).tolist() == [2, 9]
    assert scalar_model.pad_right([{"input_ids": [1] * 5}], 7, 6)["input_ids"].shape == (1, 6)


def test_texts_that_follow_each_other_without_a_separator(tmp_path):
    """As TRL joins a prompt and a reply that are texts."""
    scalar = ScalarModel(save_scalar(tmp_path), "key", ScalarOptions(turn_separator=""))
    ids = scalar.input.encode(Dialogue(["Hi ."], "Hello ."))["input_ids"]
    assert scalar.tokenizer.decode(ids) == "Hi .Hello .<eos>"


def test_a_template_that_can_think_is_written_as_its_training_wrote_it(tmp_path):
    """TRL leaves `enable_thinking` out, so the template's own default counts; this package trains with false."""
    template = "{% if enable_thinking is not defined or enable_thinking %}/think {% endif %}" + CHATML
    folder = save_scalar(tmp_path, tokenizer=chat_tokenizer(template), max_position_embeddings=200)
    scalar = ScalarModel(folder, "key", OPTIONS)
    messages = [{"role": "user", "content": "Hi ."}, {"role": "assistant", "content": "So ."}]
    ids = scalar.tokenizer.apply_chat_template(messages, return_dict=True)["input_ids"]
    assert scalar.input.encode(Dialogue(["Hi ."], "So ."))["input_ids"] == ids
    edit(tmp_path / "config.json", rlhf_dialog_input="chat_template")
    own = ScalarModel(folder, "key", OPTIONS).input.encode(Dialogue(["Hi ."], "So ."))["input_ids"]
    assert scalar.tokenizer.decode(ids) == "/think " + scalar.tokenizer.decode(own)


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
    ("config", "damage", "options", "words"),
    [
        ({"num_labels": 2}, None, {}, "has 2 labels"),
        ({"vocab_size": 100, "pad_token_id": 0}, None, {}, "259 tokens.* 100 rows"),
        ({}, without_head, {}, r"score\.weight"),
        ({}, with_nan, {}, r"\[nan, nan, nan\]"),
        ({}, as_pickle, {}, "safetensors"),
        ({}, None, {"input_form": "prose"}, r"reward_class\.args\.input_form: 'prose'"),
        ({"rlhf_dialog_input": "verse"}, None, {}, "rlhf_dialog_input in .*'verse'"),
        ({}, None, {"input_form": "dialogue", "turn_separator": ""}, r"reward_class\.args\.turn_separator: ''"),
    ],
)
def test_folders_and_options_that_cannot_be_used(tmp_path, config, damage, options, words):
    folder = save_scalar(tmp_path, **config)
    if damage:
        damage(tmp_path)
    with pytest.raises(UserError, match=words):
        ScalarModel(folder, "key", ScalarOptions(**options))


@pytest.mark.parametrize(
    ("keys", "normalize", "words"),
    [
        ({"std": 0.0, "mean": 1.0}, None, "std 0.0"),
        ({"mean": 1.0}, None, "std None"),
        ({"mean": "a", "std": 1}, None, "mean 'a'"),
        ({}, True, "mean None"),
    ],
)
def test_a_stored_mean_and_deviation_that_cannot_be_used(tmp_path, keys, normalize, words):
    folder = save_scalar(tmp_path)
    edit(tmp_path / "config.json", **keys)
    scalar = ScalarModel(folder, "key", OPTIONS)
    assert scalar.normalisation(False) == (0.0, 1.0)
    with pytest.raises(UserError, match=rf"reward_class\.args\.normalize: .*{words}"):
        scalar.normalisation(normalize)


# -- the score


DIALOGUES = [Dialogue(["Hi ."], "one two three"), Dialogue(["Hi .", "So ?"], "one"), Dialogue(["Hi ."], "")]
WORDS = [3, 1, 0]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp("models")
    return [save_scalar(base / str(seed), "gpt2", seed) for seed in range(3)]


def test_normalised_clipped_and_charged_for_length(tmp_path):
    folder = save_scalar(tmp_path)
    edit(tmp_path / "config.json", mean=0.25, std=2.0)
    outputs = RewardModel(folder).outputs(DIALOGUES)
    normal = [(x - 0.25) / 2 for x in outputs]
    assert RewardModel(folder)(DIALOGUES) == pytest.approx(normal)
    assert RewardModel(folder, normalize=True)(DIALOGUES) == pytest.approx(normal)
    assert RewardModel(folder, normalize=False)(DIALOGUES) == pytest.approx(outputs)
    limit = sorted(map(abs, normal))[1]
    found = RewardModel(folder, clip=limit, length_price=0.5)(DIALOGUES)
    clipped = [max(-limit, min(limit, x)) - 0.5 * n for x, n in zip(normal, WORDS, strict=True)]
    assert found == pytest.approx(clipped)
    assert clipped != pytest.approx([x - 0.5 * n for x, n in zip(normal, WORDS, strict=True)])


@pytest.mark.parametrize("combine", ["mean", "min", "uncertainty"])
def test_ensembles_by_hand(folders, combine):
    columns = [RewardModel(folder)(DIALOGUES) for folder in folders]
    reward = RewardModel(members=folders, combine=combine, uncertainty_coef=3.0, clip=100.0)
    expected, deviations = [], []
    for one, two, three in zip(*columns, strict=True):
        mean = (one + two + three) / 3
        variance = ((one - mean) ** 2 + (two - mean) ** 2 + (three - mean) ** 2) / 3
        expected.append({"mean": mean, "min": min(one, two, three), "uncertainty": mean - 3 * variance}[combine])
        deviations.append(math.sqrt(variance))
    assert reward(DIALOGUES) == pytest.approx(expected)
    assert metrics_of(reward) == {"reward_model_std": pytest.approx(sum(deviations) / 3)}
    assert min(deviations) > 1e-3  # else the members are the same
    part = {"id": "RewardModel", "args": {"members": folders}}
    summed = build_reward("CompositeReward", {"parts": [{"id": "LengthMatch"}, part]})
    Scorer(summed).score([replace(dialogue, reference="one") for dialogue in DIALOGUES])
    assert metrics_of(summed) == metrics_of(reward)


def test_what_it_says_of_its_models(folders):
    args = {"members": folders[:2]}
    paths = {"reward model": folders[0], "reward model_2": folders[1]}
    assert model_paths("RewardModel", args) == paths
    assert model_paths("RewardModel", {"model": folders[0]}) == {"reward model": folders[0]}
    assert list(models_inside(build_reward("RewardModel", args))) == list(paths)
    assert needs_device(build_reward("RewardModel", args))


def test_an_output_that_is_not_finite_is_not_clipped_into_a_score(folders, monkeypatch):
    reward = RewardModel(folders[0], clip=1.0)
    monkeypatch.setattr(reward.scalar, "outputs", lambda dialogues: [math.inf, -math.inf, 0.5])
    assert [math.isnan(score) for score in reward(DIALOGUES)] == [True, True, False]
    with pytest.raises(RewardError, match="dialogue 0"):
        Scorer(reward).score(DIALOGUES)
    for combine in ("min", "uncertainty"):
        both = RewardModel(members=folders[:2], combine=combine)
        for member, output in zip(both.members, (0.5, -math.inf), strict=True):
            monkeypatch.setattr(member.scalar, "outputs", lambda dialogues, output=output: [output] * len(dialogues))
        assert all(map(math.isnan, both(DIALOGUES)))
