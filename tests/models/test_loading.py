"""Loading of policy, critic, reference and tokenizer; the errors of a wrong folder."""

import math

import pytest
import torch
from tokenizers import AddedToken, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForSequenceClassification

from rlhf_dialog.config.schema import Config
from rlhf_dialog.errors import UserError
from rlhf_dialog.models.loading import load_causal_lm, load_models, trained_parameters
from rlhf_dialog.models.masks import last_token, position_ids_of
from rlhf_dialog.models.packing import ATTENTION
from rlhf_dialog.models.policy import Policy, packs, supported_options, teacher_forced
from rlhf_dialog.models.token_batch import TokenBatch
from rlhf_dialog.models.weights import load_module, save_module
from tests.parts.poisoned import edit
from tests.parts.saved_models import CPU, EPISODES
from tests.parts.scalars import save_scalar
from tests.parts.tiny import byte_tokenizer, gpt2, llama
from tests.parts.token_batches import critic_values, masks_of


def save(folder, lm=None, tokenizer=None):
    """A model folder; returns its path as text."""
    (lm or gpt2(initializer_range=0.3)).save_pretrained(folder)
    if tokenizer is not False:
        (tokenizer or byte_tokenizer()).save_pretrained(folder)
    return str(folder)


def settings(model_path, tokenizer_path=None, **keys):
    env = {"args": {"data_path": "unused", "tokenizer_path": tokenizer_path}}
    return Config(
        model_path=model_path, env=env, reward_class={"id": "Meteor"}, max_prompt_length=100, max_new_tokens=20, **keys
    )


def test_masks_and_options_by_hand():
    class Takes(torch.nn.Module):
        def forward(self, x, position_ids=None): ...

    assert supported_options(Takes(), position_ids=1, logits_to_keep=2) == {"position_ids": 1}
    assert last_token(masks_of("110", "101", "000", "010")).tolist() == [1, 2, -1, 1]
    assert position_ids_of(masks_of("0011", "1111", "0000", "1011")).tolist() == [
        [0, 0, 0, 1],
        [0, 1, 2, 3],
        [0, 0, 0, 0],
        [0, 0, 1, 2],
    ]


@pytest.mark.parametrize("share", [True, False])
def test_loaded_models(tmp_path, share):
    path = save(tmp_path / "lm")
    models = load_models(settings(path, use_share_model=share), CPU)
    assert (models.policy.value_head is not None) == share
    assert (models.critic is None) == share
    assert not any(module.training for m in (models.policy, models.ref_policy) for module in m.modules())
    assert all(p.requires_grad for p in models.policy.parameters())
    assert not any(p.requires_grad for p in models.ref_policy.parameters())
    assert {p.dtype for p in models.policy.parameters()} == {torch.float32}
    trained = sum(p.numel() for p in gpt2().parameters()) + 33 * share
    assert trained_parameters([models.policy, models.ref_policy]) == trained
    ours, theirs = (teacher_forced(m, TokenBatch(*EPISODES), 1.0) for m in (models.policy, models.ref_policy))
    assert torch.equal(ours.logprobs, theirs.logprobs)
    values = ours.values if share else critic_values(models.critic, TokenBatch(*EPISODES))
    assert values.tolist() == [[0, 0, 0], [0, 0, 0]]
    if models.critic is not None:
        assert not any(module.training for module in models.critic.modules())
        shared = {p.data_ptr() for p in models.critic.parameters()} & {p.data_ptr() for p in models.policy.parameters()}
        assert not shared
        assert all(p.requires_grad for p in models.critic.parameters())
    apart = {p.data_ptr() for p in models.ref_policy.parameters()} & {p.data_ptr() for p in models.policy.parameters()}
    assert not apart


@pytest.mark.parametrize("packing", [True, False])
def test_the_key_packing_reaches_every_model(tmp_path, packing):
    path, ref = save(tmp_path / "lm", llama()), save(tmp_path / "ref", llama(5))
    models = load_models(settings(path, ref_model=ref, use_share_model=False, packing=packing), CPU)
    for lm in (models.policy.lm, models.ref_policy.lm, models.critic.trunk):
        assert packs(lm) == packing
        assert lm.config._attn_implementation == (ATTENTION if packing else "sdpa")


@pytest.mark.slow
def test_another_reference_and_an_estimator_without_a_critic(tmp_path):
    path, ref = save(tmp_path / "lm"), save(tmp_path / "ref", gpt2(5, initializer_range=0.3))
    models = load_models(settings(path, ref_model=ref, use_share_model=False, advantage_estimator="reinforce_pp"), CPU)
    assert models.critic is models.policy.value_head is None
    expected = load_causal_lm(ref, "ref_model")
    assert torch.equal(models.ref_policy.lm.transformer.wte.weight, expected.transformer.wte.weight)
    assert not torch.equal(models.ref_policy.lm.transformer.wte.weight, models.policy.lm.transformer.wte.weight)
    other = save(tmp_path / "big", gpt2(vocab_size=300))
    with pytest.raises(UserError, match=r"ref_model: .*another vocabulary size"):
        load_models(settings(path, ref_model=other), CPU)


def swapped(tokenizer, first, second):
    """The same tokenizer with the ids of two bytes exchanged."""
    vocab = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocab[first], vocab[second] = vocab[second], vocab[first]
    tokenizer.backend_tokenizer.model = BPE(vocab=vocab, merges=[])
    return tokenizer


def with_another_end():
    tokenizer = byte_tokenizer(separator_token=False)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    return tokenizer


@pytest.mark.parametrize(
    "own",
    [
        lambda: swapped(byte_tokenizer(), "Ã", "Ð"),  # bytes of é and of я
        lambda: swapped(byte_tokenizer(), "Q", "7"),
        with_another_end,
    ],
)
def test_a_reference_with_other_token_ids_is_refused(tmp_path, own):
    path, other = save(tmp_path / "lm"), save(tmp_path / "ref", tokenizer=own())
    with pytest.raises(UserError, match=r"ref_model: the tokenizer of '.*ref' gives other token ids"):
        load_models(settings(path, ref_model=other), CPU)


@pytest.mark.slow
def test_a_reference_may_have_no_tokenizer_or_another_bos(tmp_path):
    """The policy's ids are the reference's as well, with whatever the reference's tokenizer would put in front of a text."""
    path, bare = save(tmp_path / "lm"), save(tmp_path / "bare", tokenizer=False)
    begins = byte_tokenizer()
    bos = [("<pad>", begins.pad_token_id)]
    begins.backend_tokenizer.post_processor = TemplateProcessing("<pad> $A", "<pad> $A $B", bos)
    assert begins("a")["input_ids"] == [256, *byte_tokenizer()("a")["input_ids"]]
    for ref in (bare, save(tmp_path / "begins", tokenizer=begins)):
        load_models(settings(path, ref_model=ref), CPU)


def test_autocast_gives_float32_from_bfloat16():
    lm = gpt2(initializer_range=0.3).eval()
    exact, rough = Policy(lm, True), Policy(lm, True, use_amp=True)
    assert rough.logits(rough.features(TokenBatch(*EPISODES).pack())[0]).dtype == torch.bfloat16
    for x, y in zip(*(policy(TokenBatch(*EPISODES).pack(), 1.0)[:3] for policy in (exact, rough)), strict=True):
        assert x.dtype == y.dtype == torch.float32
        assert (x - y).abs().max() < 0.5


def test_tokenizer_that_is_too_large_or_of_another_model(tmp_path):
    with pytest.raises(UserError, match=r"tokenizer_path.*has 259 tokens, but the model .* for 258"):
        load_models(settings(save(tmp_path / "small", gpt2(vocab_size=258))), CPU)
    path = save(tmp_path / "lm")
    other = byte_tokenizer()
    other.add_tokens([AddedToken("how")])
    big = save(tmp_path / "big", gpt2(vocab_size=300))
    strange = save(tmp_path / "strange", tokenizer=other)
    with pytest.raises(UserError, match=r"model_path: .* gives other token ids .*leave env.args.tokenizer_path out"):
        load_models(settings(big, tokenizer_path=strange), CPU)
    same = save(tmp_path / "same")
    assert len(load_models(settings(path, tokenizer_path=same), CPU).tokenizer) == 259


def test_prompt_and_response_must_fit(tmp_path):
    with pytest.raises(UserError, match=r"max_prompt_length: 100 \+ max_new_tokens 20 = 120 tokens, .* 119 positions"):
        load_models(settings(save(tmp_path / "a", gpt2(n_positions=119))), CPU)
    load_models(settings(save(tmp_path / "b", gpt2(n_positions=120))), CPU)


def test_model_folder_without_a_tokenizer(tmp_path):
    """transformers makes an empty GPT-2 tokenizer of one token out of nothing: every prompt would be empty."""
    bare, tokenizer = save(tmp_path / "bare", tokenizer=False), save(tmp_path / "whole")
    assert len(load_models(settings(bare, tokenizer_path=tokenizer), CPU).tokenizer) == 259
    with pytest.raises(UserError, match=r"tokenizer_path"):
        load_models(settings(bare), CPU)


@pytest.mark.slow
def test_a_separate_critic_starts_from_a_reward_model(tmp_path):
    """Its trunk has the weights of the folder, its head starts at 0; policy and reference do not change."""
    path = save(tmp_path / "lm")
    start = save_scalar(tmp_path / "reward", "llama", max_position_embeddings=256)
    models = load_models(settings(path, critic_path=start), CPU)
    reward = AutoModelForSequenceClassification.from_pretrained(start)
    expected = reward.base_model.state_dict()
    found = models.critic.trunk.state_dict()
    assert expected.keys() == found.keys()
    assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items())
    assert not models.critic.value_head.weight.any()
    assert critic_values(models.critic, TokenBatch(*EPISODES)).abs().max() == 0
    own = load_models(settings(path), CPU)
    assert torch.equal(own.policy.lm.transformer.wte.weight, models.policy.lm.transformer.wte.weight)


@pytest.mark.parametrize(
    ("change", "sizes", "words"),
    [
        ("", {"n_positions": 64}, "reward' has 64 positions"),
        ("", {"n_positions": 256, "vocab_size": 258}, "critic_path: the tokenizer has 259 tokens, .* for 258"),
        ("7", {"n_positions": 256}, "critic_path: the tokenizer of '.*' gives other token ids"),
    ],
)
def test_a_critic_that_does_not_fit_the_policy_is_refused(tmp_path, change, sizes, words):
    tokenizer = swapped(byte_tokenizer(), "Q", change) if change else byte_tokenizer()
    start = save_scalar(tmp_path / "reward", "gpt2", tokenizer=tokenizer, **sizes)
    with pytest.raises(UserError, match=words):
        load_models(settings(save(tmp_path / "lm"), critic_path=start), CPU)


@pytest.mark.parametrize("tied", [True, False])
def test_the_configuration_says_whether_the_matrices_of_the_file_are_one(tmp_path, tied):
    path = save(tmp_path, llama(tie_word_embeddings=tied))
    edit(tmp_path / "config.json", tie_word_embeddings=True)
    lm = load_causal_lm(path, "model_path")
    assert (lm.get_output_embeddings().weight is lm.get_input_embeddings().weight) is tied
    assert lm.config.tie_word_embeddings is tied


def test_weights_that_are_not_numbers_are_refused(tmp_path):
    lm = llama()
    lm.model.norm.weight.data[1] = -math.inf
    lm.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"--agent: the weights in .* damaged: model\.norm\.weight"):
        load_causal_lm(str(tmp_path), "--agent")


# -- what a checkpoint holds of a module


def test_a_module_comes_back_and_names_that_are_missing_or_too_many(tmp_path):
    def equal(one, other) -> bool:
        return all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))

    first, second = Policy(gpt2(1), with_value_head=True), Policy(gpt2(2), with_value_head=True)
    save_module(first, tmp_path / "x.safetensors")
    assert not equal(first, second)
    assert load_module(second, tmp_path / "x.safetensors", CPU) == ([], [])
    assert equal(first, second)
    save_module(Policy(gpt2()), tmp_path / "bare.safetensors")
    head = ["value_head.bias", "value_head.weight"]
    assert load_module(first, tmp_path / "bare.safetensors", CPU, strict=False) == (head, [])
    assert load_module(Policy(gpt2()), tmp_path / "x.safetensors", CPU, strict=False) == ([], head)
    with pytest.raises(RuntimeError, match="value_head"):
        load_module(first, tmp_path / "bare.safetensors", CPU)
