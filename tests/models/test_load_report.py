"""A folder lacks weights, or has others: what a model computes with is refused when it is missing, and nothing else is."""

import logging
import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    RobertaConfig,
    RobertaForMaskedLM,
)

from rlhf_dialog.errors import UserError
from rlhf_dialog.models.chat_agent import ChatAgent
from rlhf_dialog.models.load_report import used_weights
from rlhf_dialog.models.loading import load_models
from rlhf_dialog.models.pretrained import load_pretrained
from rlhf_dialog.models.relevance import load_relevance
from rlhf_dialog.rewards.encoder_similarity import EncoderSimilarity
from rlhf_dialog.rewards.intent import Intent
from rlhf_dialog.rewards.reward_model import RewardModel
from rlhf_dialog.training.supervised.preference_model import starting_point
from rlhf_dialog.training.supervised.settings import PreferenceConfig
from tests.parts import agents, zoo
from tests.parts.classifiers import save_classifier
from tests.parts.poisoned import edit
from tests.parts.relevance_models import save_letters
from tests.parts.saved_models import CPU, save
from tests.parts.scalars import save_scalar
from tests.parts.tiny import byte_tokenizer, gpt2, llama
from tests.parts.trainers import settings

SMALL = {
    "vocab_size": 259,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


def said(caplog):
    """What the checks of weights have logged; other modules log at the level that an earlier test has set."""
    return [record for record in caplog.records if record.name == "rlhf_dialog.models.load_report"]


def rewrite(folder, change):
    """Other weights in the folder: `change` gets and returns them by name."""
    path = folder / "model.safetensors"
    save_file({name: x.contiguous() for name, x in change(load_file(path)).items()}, path, {"format": "pt"})


def without(end):
    return lambda weights: {name: x for name, x in weights.items() if not name.endswith(end)}


def load(folder, auto_class=AutoModelForCausalLM, **options):
    return load_pretrained(auto_class, str(folder), "model_path", **options)


def refusal(folder, auto_class=AutoModelForCausalLM, **options):
    with pytest.raises(UserError, match=r"^model_path: '.*': ") as error:
        load(folder, auto_class, **options)
    return str(error.value).removeprefix(f"model_path: '{folder}': ")


# -- what is missing


@pytest.mark.parametrize("kind", zoo.KINDS)
def test_of_every_family_a_whole_folder_loads_without_a_word_and_one_without_a_weight_is_refused(
    kind, tmp_path, caplog
):
    caplog.set_level(logging.INFO)
    lm = zoo.new_lm(kind, packing=False, dtype=torch.float32)
    lm.save_pretrained(tmp_path)
    caplog.clear()
    load(tmp_path)
    assert not said(caplog)
    stored = sorted(load_file(tmp_path / "model.safetensors"))
    name = stored[len(stored) // 2]
    rewrite(tmp_path, without(name))
    assert f"lacks a weight that {type(lm).__name__} computes with ({name})" in refusal(tmp_path)
    assert not said(caplog)


@pytest.mark.parametrize(
    ("prefix", "words"),
    [
        ("_orig_mod.", "torch.compile: remove `_orig_mod.`"),
        ("base_model.model.", "PEFT: remove `base_model.model.`"),
        ("pretrained_model.", "remove `pretrained_model.`"),
        ("module.", "remove `module.`"),
        ("student.net.", "remove `student.net.`"),
    ],
)
@pytest.mark.parametrize("lm", [gpt2, llama])
def test_names_with_a_prefix_say_which_and_how_many(prefix, words, lm, tmp_path):
    lm().save_pretrained(tmp_path)
    rewrite(tmp_path, lambda weights: {prefix + name: x for name, x in weights.items()})
    text = refusal(tmp_path)
    first, number = ("transformer.wte.weight", 28) if lm is gpt2 else ("model.embed_tokens.weight", 21)
    assert first in text
    assert f"lacks {number} weights" in text
    assert words in text


def test_a_prefix_within_the_names_and_adapters_that_were_not_merged(tmp_path):
    llama().save_pretrained(tmp_path)
    rewrite(
        tmp_path,
        lambda weights: {re.sub(r"(layers\.\d\.)", r"\1_fsdp_wrapped_module.", name): x for name, x in weights.items()},
    )
    assert "remove `_fsdp_wrapped_module.`" in refusal(tmp_path)
    llama().save_pretrained(tmp_path)

    def adapted(weights):
        return {name.replace("q_proj.", "q_proj.base_layer."): x for name, x in weights.items()} | {
            "model.layers.0.self_attn.q_proj.lora_A.default.weight": torch.zeros(2, 32)
        }

    rewrite(tmp_path, adapted)
    assert "merge them into the model" in refusal(tmp_path)


def test_more_layers_in_the_configuration_than_in_the_file(tmp_path):
    llama().save_pretrained(tmp_path)
    edit(tmp_path / "config.json", num_hidden_layers=3)
    assert "lacks 9 weights that LlamaForCausalLM computes with (model.layers.2." in refusal(tmp_path)


def test_fewer_layers_in_the_configuration_than_in_the_file_is_a_warning(tmp_path, caplog):
    llama().save_pretrained(tmp_path)
    edit(tmp_path / "config.json", num_hidden_layers=1)
    load(tmp_path)
    (record,) = said(caplog)
    assert record.levelno == logging.WARNING
    assert "model.layers.1. (9)" in record.getMessage()


def test_a_shape_of_another_configuration(tmp_path):
    llama().save_pretrained(tmp_path)
    edit(tmp_path / "config.json", intermediate_size=48)
    assert "model.layers.0.mlp.gate_proj.weight has the shape (64, 32) in the file, and (48, 32)" in refusal(tmp_path)


def test_a_head_that_is_missing_but_not_tied(tmp_path):
    llama().save_pretrained(tmp_path)
    rewrite(tmp_path, without("lm_head.weight"))
    assert "set tie_word_embeddings: true" in refusal(tmp_path)
    edit(tmp_path / "config.json", tie_word_embeddings=True)
    lm = load(tmp_path)
    assert lm.lm_head.weight is lm.model.embed_tokens.weight


def test_a_reward_model_is_no_policy_and_a_policy_is_no_reward_model(tmp_path):
    save_scalar(tmp_path / "reward", "llama")
    assert "reward model (score.weight)" in refusal(tmp_path / "reward")
    llama().save_pretrained(tmp_path / "lm")
    assert "was not trained as a classifier" in refusal(tmp_path / "lm", AutoModelForSequenceClassification)


def test_experts_that_no_token_of_the_trial_chose_are_missing_all_the_same(tmp_path):
    """The library holds the experts of a layer as one tensor; here each is a layer, as in models with code of their own."""
    lm = llama()
    names = [name for name, _ in lm.named_parameters() if ".1." in name]
    forward = lm.model.layers[1].forward
    lm.model.layers[1].forward = lambda hidden_states, **_: hidden_states  # not chosen
    assert used_weights(lm, names, only_trunk=False) == names
    lm.model.layers[1].forward = forward
    lm.pooler = nn.Linear(2, 2)
    assert used_weights(lm, [*names, "pooler.weight"], only_trunk=False) == names


def test_a_buffer_that_training_fills_must_be_there_one_that_is_computed_not():
    lm = llama()
    lm.model.norm.register_buffer("correction", torch.zeros(4))
    lm.model.norm.register_buffer("decay", torch.arange(4.0))
    assert used_weights(lm, ["model.norm.correction", "model.norm.decay"], only_trunk=False) == [
        "model.norm.correction"
    ]


# -- what may be missing


def test_folders_in_the_shape_of_the_hub_load_without_a_word(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    gpt2().save_pretrained(tmp_path / "gpt2")

    def as_the_seed(weights):
        masks = {f"h.{i}.attn.{name}": torch.ones(1) for i in range(2) for name in ("bias", "masked_bias")}
        return {name.removeprefix("transformer."): x for name, x in weights.items()} | masks

    rewrite(tmp_path / "gpt2", as_the_seed)
    neox = GPTNeoXForCausalLM(GPTNeoXConfig(**SMALL, tie_word_embeddings=False))
    neox.save_pretrained(tmp_path / "pythia")

    def as_pythia(weights):
        of_layer = [f"gpt_neox.layers.{i}.attention." for i in range(2)]
        names = ("bias", "masked_bias", "rotary_emb.inv_freq")
        return weights | {f"{layer}{name}": torch.ones(1) for layer in of_layer for name in names}

    rewrite(tmp_path / "pythia", as_pythia)
    tied = llama(tie_word_embeddings=True)
    tied.save_pretrained(tmp_path / "llama")
    rewrite(tmp_path / "llama", lambda x: x | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)})
    caplog.clear()
    for name in ("gpt2", "pythia", "llama"):
        load(tmp_path / name)
    load(tmp_path / "llama", AutoModel)
    assert not said(caplog)


@pytest.mark.slow
def test_a_model_of_images_and_text_loads_without_a_word(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = SMALL | {"num_key_value_heads": 2, "head_dim": 8}
    both = Gemma3Config(text_config=text, vision_config=vision | {"image_size": 28, "patch_size": 14})
    Gemma3ForConditionalGeneration(both).save_pretrained(tmp_path)
    caplog.clear()
    load(tmp_path)
    assert not said(caplog)
    rewrite(tmp_path, lambda x: {name: y for name, y in x.items() if not name.startswith("vision_tower")})
    load(tmp_path)  # text alone is read, which the tower has no part in


def test_an_agent_of_ours_loads_without_a_word(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="rlhf_dialog.models.load_report")
    agents.save(tmp_path)
    ChatAgent.load(tmp_path)
    assert not said(caplog)


def test_a_pooler_may_be_missing_where_means_are_taken(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="rlhf_dialog.models.load_report")
    lm = BertForMaskedLM(BertConfig(**SMALL))
    lm.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    EncoderSimilarity(str(tmp_path))
    (record,) = said(caplog)
    assert "cls. (5)" in record.getMessage()
    rewrite(tmp_path, without("layer.1.output.dense.weight"))
    with pytest.raises(UserError, match=r"lacks a weight that BertModel .*encoder\.layer\.1\.output\.dense\.weight"):
        EncoderSimilarity(str(tmp_path))


@pytest.mark.parametrize(("config", "lm"), [(BertConfig, BertForMaskedLM), (RobertaConfig, RobertaForMaskedLM)])
def test_a_training_may_begin_with_a_new_head_but_not_with_a_new_layer(config, lm, tmp_path):
    lm(config(**SMALL)).save_pretrained(tmp_path)
    load(tmp_path, AutoModelForSequenceClassification, only_trunk=True, num_labels=4)
    rewrite(tmp_path, without("layer.1.output.dense.weight"))
    assert "layer.1.output.dense.weight" in refusal(tmp_path, AutoModelForSequenceClassification, only_trunk=True)


def test_a_preference_model_begins_with_a_new_head(tmp_path):
    save(tmp_path, gpt2())
    keys = {"data_path": "d", "output": "o", "model_path": str(tmp_path)}
    model, _ = starting_point(PreferenceConfig(**keys))
    assert model.score.weight.std().item() == pytest.approx(33**-0.5, rel=0.5)
    rewrite(tmp_path, without("h.1.mlp.c_fc.weight"))
    with pytest.raises(UserError, match=r"lacks a weight .*transformer\.h\.1\.mlp\.c_fc\.weight"):
        starting_point(PreferenceConfig(**keys))


@pytest.mark.slow
def test_a_critic_needs_no_head_but_its_whole_trunk(tmp_path):
    path, start = save(tmp_path / "lm", gpt2()), tmp_path / "reward"
    save_scalar(start, "llama", max_position_embeddings=256)
    load_models(settings(model_path=path, critic_path=str(start), use_share_model=False), CPU)
    rewrite(start, without("layers.0.mlp.up_proj.weight"))
    with pytest.raises(UserError, match=r"critic_path: .* lacks a weight .*layers\.0\.mlp\.up_proj"):
        load_models(settings(model_path=path, critic_path=str(start), use_share_model=False), CPU)


# -- what is there besides


def test_heads_and_towers_of_others_are_one_line(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    llama().save_pretrained(tmp_path)
    names = {"vision_tower.a.weight", "vision_tower.b.weight", "score.weight", "model.rotary_emb.inv_freq"}
    rewrite(tmp_path, lambda weights: weights | {name: torch.zeros(2) for name in names})
    caplog.clear()
    load(tmp_path)
    (record,) = said(caplog)
    assert record.getMessage().endswith("vision_tower. (2), score. (1)")


@pytest.mark.parametrize("kind", ["llama", "bert", "gpt2"])
def test_what_a_reward_model_would_drop_is_refused(kind, tmp_path):
    folder = tmp_path / "reward"
    save_scalar(folder, kind)
    rewrite(
        folder,
        lambda weights: weights | {"lm_head.weight": torch.zeros(2), "model.rotary_emb.inv_freq": torch.zeros(2)},
    )
    RewardModel(str(folder))
    rewrite(folder, lambda weights: weights | {f"gating.{i}.weight": torch.zeros(2) for i in range(3)})
    with pytest.raises(UserError, match=r"weights that .*ForSequenceClassification would drop.* gating\. \(3\)"):
        RewardModel(str(folder))


@pytest.mark.parametrize(
    ("codes", "named"),
    [
        (
            {"AutoModelForSequenceClassification": "modeling.LlamaForRewardModelWithGating"},
            "LlamaForRewardModelWithGating",
        ),
        ({"AutoModel": "someone/repo--modeling.RewardModel"}, "RewardModel"),
        ({"AutoModelForSequenceClassification": "modeling.LlamaForSequenceClassification"}, None),
        ({"AutoConfig": "configuration.LlamaConfig", "AutoModel": "modeling.LlamaModel"}, None),
    ],
)
def test_a_reward_model_of_another_class_is_refused(codes, named, tmp_path):
    save_scalar(tmp_path, "llama")
    edit(tmp_path / "config.json", auto_map=codes)
    if named is None:
        RewardModel(str(tmp_path))
    else:
        with pytest.raises(UserError, match=f"a class of its own .*{named}"):
            RewardModel(str(tmp_path))


# -- every loader


def test_every_loader_asks(tmp_path):
    folders = {name: tmp_path / name for name in ("lm", "ref", "act", "reward", "relevance", "bot")}
    path, ref = save(folders["lm"], gpt2()), save(folders["ref"], gpt2())
    save_classifier(folders["act"])
    save_scalar(folders["reward"], "bert")
    folders["relevance"].mkdir()
    save_letters(folders["relevance"])
    agents.save(folders["bot"])
    for folder, end in zip(
        folders.values(),
        ("c_fc.bias", "c_fc.bias", "query.bias", "query.bias", "of_reply.bias", "c_fc.bias"),
        strict=True,
    ):
        rewrite(folder, without(end))
    asked = {
        "model_path": lambda: load_models(settings(model_path=path), CPU),
        "intent_model": lambda: Intent(str(folders["act"])),
        "model:": lambda: RewardModel(str(folders["reward"])),
        "k:": lambda: load_relevance(str(folders["relevance"]), "k"),
        "--agent": lambda: ChatAgent.load(folders["bot"]),
    }
    for key, ask in asked.items():
        with pytest.raises(UserError, match=rf"{key}.* lacks \d weights that"):
            ask()
    gpt2().save_pretrained(folders["lm"])
    with pytest.raises(UserError, match=r"ref_model: .* lacks \d weights that"):
        load_models(settings(model_path=path, ref_model=ref), CPU)
