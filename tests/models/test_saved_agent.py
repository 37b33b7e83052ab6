"""The folder of an agent is a plain causal LM, and survives a failed write."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf_dialog.data.chat_template import prompt_encoder
from rlhf_dialog.data.dialogue import CHAT_TEMPLATE, Dialogue, SystemText
from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.sessions.loaded_versions import load_agent
from rlhf_dialog.feedback.store.bot import copy_agent
from rlhf_dialog.models import saved_agent
from rlhf_dialog.models.chat_agent import AGENT_FILE, AgentSettings, ChatAgent, read_settings
from rlhf_dialog.models.loading import Policy, load_causal_lm, read_tokenizer
from rlhf_dialog.models.lora import add_adapters, trainable_parameters
from rlhf_dialog.models.saved_agent import kept_system_prompt, save_agent, set_system_prompt
from rlhf_dialog.publishing.files import published_files
from rlhf_dialog.rewards.scalar_model import RewardInput
from rlhf_dialog.runs.identity import tokenizer_fingerprint
from rlhf_dialog.task_oriented.world.users.language_model import load_responder
from tests.parts.tiny import CHATML, byte_tokenizer, chat_tokenizer, gpt2, llama
from tests.parts.trainers import make_trainer


@pytest.mark.parametrize("make", [None, llama])
def test_agent_folder_is_a_plain_causal_lm(tmp_path, make):
    trainer = make_trainer(top_k=7, temperature=0.6, max_prompt_length=99)
    policy = trainer.models.policy if make is None else Policy(make()).eval()
    if make is None:
        trainer.step()
    save_agent(tmp_path / "agent", policy, trainer.models.tokenizer, trainer.config)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "agent").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "agent")
    text = "Where is the ladder ? <EOU>"
    assert tokenizer(text)["input_ids"] == byte_tokenizer()(text)["input_ids"]
    ids = torch.tensor([tokenizer(text)["input_ids"]])
    with torch.no_grad():
        assert torch.equal(plain(ids).logits, policy.lm(ids).logits)
    settings = json.loads((tmp_path / "agent/rlhf_dialog.json").read_text())
    sampling = {"max_new_tokens": 5, "temperature": 0.6, "top_k": 7, "top_p": 1.0, "precision": "fp32"}
    prompt = {"turn_separator": "<EOU>", "context_size": 5, "max_prompt_length": 99}
    assert settings == {"format_version": 1} | prompt | sampling
    head = tmp_path / "agent/value_head.safetensors"
    assert head.exists() == (make is None)
    if make is None:
        assert torch.equal(load_file(head)["weight"], policy.value_head.weight)
        assert policy.value_head.weight.any()
    assert not list((tmp_path / "agent").glob("*.bin"))
    assert {path.name for path in tmp_path.iterdir()} == {"agent"}


def test_a_large_agent_is_saved_in_several_files_that_load_as_one(tmp_path, monkeypatch):
    monkeypatch.setattr(saved_agent, "SHARD", "40KB")
    policy = Policy(llama()).eval()
    save_agent(tmp_path, policy, byte_tokenizer(), AgentSettings())
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert len({*index["weight_map"].values()}) > 1
    assert {*index["weight_map"].values()} < {*published_files(tmp_path, "agent")}
    plain = AutoModelForCausalLM.from_pretrained(tmp_path)
    for lm in (plain, load_causal_lm(str(tmp_path), "model_path")):
        assert all(torch.equal(x, policy.lm.state_dict()[name]) for name, x in lm.state_dict().items())


@pytest.mark.parametrize(("use_amp", "stored"), [(None, None), (True, "bf16")])
def test_an_agent_draws_in_the_precision_that_its_run_asked_for(tmp_path, use_amp, stored):
    """Auto is not written: the machine decides on which it is loaded."""
    trainer = make_trainer(use_amp=use_amp)
    save_agent(tmp_path / "agent", trainer.models.policy, trainer.models.tokenizer, trainer.config)
    assert json.loads((tmp_path / "agent/rlhf_dialog.json").read_text()).get("precision") == stored
    agent = ChatAgent.load(tmp_path / "agent")
    assert agent.policy.use_amp == (stored == "bf16")
    agent.set_precision(AgentSettings(precision="fp32"))
    assert not agent.policy.use_amp
    agent.set_precision(AgentSettings())
    assert agent.policy.use_amp == (stored == "bf16")


def test_an_agent_keeps_what_a_chat_shows(tmp_path):
    keys = {"introduction": "A waiter.", "chat_temperature": 0.0, "chat_top_p": 0.9}
    for given in (keys, {}):
        save_agent(tmp_path / "agent", Policy(gpt2()).eval(), byte_tokenizer(), AgentSettings(**given))
        stored = json.loads((tmp_path / "agent" / AGENT_FILE).read_text())
        assert {key: stored[key] for key in keys if key in stored} == given  # older versions do not know them
        assert read_settings(tmp_path / "agent").introduction == given.get("introduction")


CHAT = {"turn_separator": "chat_template", "system_prompt": "Be brief .", "context_size": 3}


def save_chat_agent(folder, tokenizer=None, **settings):
    policy = Policy(gpt2(vocab_size=261)).eval()
    save_agent(folder, policy, tokenizer or chat_tokenizer(), AgentSettings(**{**CHAT, **settings}))
    return folder


def test_plain_transformers_samples_as_the_agent(tmp_path):
    settings = {"temperature": 0.5, "top_k": 5, "top_p": 0.9, "max_new_tokens": 7, "stop_token_ids": [65]}
    save_agent(tmp_path / "agent", Policy(gpt2()).eval(), byte_tokenizer(), AgentSettings(**settings))
    stored = json.loads((tmp_path / "agent/generation_config.json").read_text())
    assert read_settings(tmp_path / "agent").stop_token_ids == settings.pop("stop_token_ids")
    expected = settings | {"do_sample": True, "eos_token_id": [65, 257, 258]}  # its own, and the separator's
    assert {name: stored[name] for name in expected} == expected
    assert "stop_strings" not in stored
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "agent").generation_config
    assert {name: getattr(loaded, name) for name in expected} == expected


@pytest.mark.parametrize(("chat_temperature", "sampling"), [(0.0, (False, 1.0)), (None, (True, 0.8))])
def test_other_programs_have_temperature_and_top_p_of_the_chat(tmp_path, chat_temperature, sampling):
    save_chat_agent(tmp_path / "agent", temperature=0.8, chat_temperature=chat_temperature, chat_top_p=0.6)
    stored = json.loads((tmp_path / "agent/generation_config.json").read_text())
    assert (stored["do_sample"], stored["temperature"]) == sampling
    assert (stored["top_p"], stored["top_k"]) == (0.6, 0)
    assert stored["eos_token_id"] == [257, 260], "its own, and that of the template"


OF_THE_START = {
    **{"repetition_penalty": 1.8, "min_p": 0.3, "min_new_tokens": 5, "no_repeat_ngram_size": 2, "num_beams": 3},
    **{"suppress_tokens": [97, 101], "begin_suppress_tokens": [102], "typical_p": 0.5, "forced_eos_token_id": 40},
}


def start_of(folder, make, tie, in_file=None):
    """A start with generation settings; `in_file`: what its config.json says of the tie, whatever its matrices are."""
    make(vocab_size=262, tie_word_embeddings=tie, initializer_range=0.3).save_pretrained(folder)
    chat_tokenizer().save_pretrained(folder)
    for name, more in (
        ("generation_config", OF_THE_START),
        ("config", {"tie_word_embeddings": tie if in_file is None else in_file}),
    ):
        path = folder / f"{name}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | more))
    return load_causal_lm(str(folder), "model_path"), read_tokenizer(str(folder), "model_path")


@pytest.mark.parametrize(
    ("make", "tie", "in_file", "with_lora"),
    [
        (gpt2, False, True, True),
        pytest.param(gpt2, True, True, False, marks=pytest.mark.slow),
        pytest.param(llama, False, True, False, marks=pytest.mark.slow),
    ],
)
def test_other_programs_answer_greedily_as_the_agent_with_the_matrices_that_were_trained(
    tmp_path, make, tie, in_file, with_lora
):
    lm, tokenizer = start_of(tmp_path / "start", make, tie, in_file)
    if with_lora:
        add_adapters(lm, ["policy"], 4, 8, None, 0)
        lm.bfloat16()  # as on a GPU
    torch.manual_seed(0)
    with torch.no_grad():
        for x in trainable_parameters(lm).values():
            x += torch.randn_like(x) * 0.05
    policy = Policy(lm, adapter="policy" if with_lora else None).eval()
    settings = AgentSettings(turn_separator=CHAT_TEMPLATE, top_k=1, max_new_tokens=12)
    save_agent(tmp_path / "agent", policy, tokenizer, settings)
    config = json.loads((tmp_path / "agent" / "config.json").read_text())
    assert config["tie_word_embeddings"] == tie
    assert ("lm_head.weight" in load_file(tmp_path / "agent" / "model.safetensors")) == (not tie)
    stored = json.loads((tmp_path / "agent" / "generation_config.json").read_text())
    assert stored.pop("suppress_tokens", None) in (None, list(range(len(tokenizer), lm.config.vocab_size)))
    assert not OF_THE_START.keys() & stored.keys()
    assert stored["pad_token_id"] == lm.config.pad_token_id
    plain, agent = AutoModelForCausalLM.from_pretrained(tmp_path / "agent").eval(), ChatAgent.load(tmp_path / "agent")
    for name, x in plain.named_parameters():
        if not with_lora:
            assert x.equal(lm.get_parameter(name)), name
    read = AutoTokenizer.from_pretrained(tmp_path / "agent")
    for text in ("Hi .", "What time ?", "abc", "Where is my room", "x"):
        chat = [{"role": "user", "content": text}]
        ids = read.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")["input_ids"]
        theirs = plain.generate(ids, do_sample=False)[0, ids.shape[1] :].tolist()
        assert theirs == agent.reply([Dialogue([text])])[0].ids, text


@pytest.mark.parametrize("separator", ["chat_template", pytest.param("<EOU>", marks=pytest.mark.slow)])
def test_all_readers_of_templates_read_an_agent_as_before_it_was_saved(tmp_path, separator):
    """With rlhf_dialog.json, and without it."""
    system = {"system_prompt": None} if separator != "chat_template" else {}
    folder = save_chat_agent(tmp_path / "agent", turn_separator=separator, max_new_tokens=9, **system)
    turns, before = ["a", "b", "c", "d<eos>e"], chat_tokenizer()
    encoder = prompt_encoder(before, separator, 128, CHAT["system_prompt"] if not system else None)
    dialogue, read = Dialogue(turns, response="f"), []
    for _ in range(2):
        tokenizer = read_tokenizer(str(folder), "--agent")
        assert tokenizer_fingerprint(tokenizer) == tokenizer_fingerprint(before)
        for agent in (ChatAgent.load(folder), load_agent(folder), load_responder(str(folder), sampling=())):
            assert agent.encoder.encode_prompt(turns[-3:]) == encoder.encode_prompt(turns[-3:])
            assert (agent.settings.turn_separator, agent.settings.max_new_tokens) == (separator, 9)
        bot_agent = tmp_path / f"copy {len(read)}"
        copy_agent(folder, bot_agent)
        assert read_settings(bot_agent) == read_settings(folder)
        saved = read_tokenizer(str(folder), "--agent", as_saved=True)
        rewards = [RewardInput(one, CHAT_TEMPLATE, CHAT_TEMPLATE, 200) for one in (tokenizer, saved)]
        read.append([one.encode(dialogue) for one in rewards])
        (folder / AGENT_FILE).unlink(missing_ok=True)
    assert read[0] == read[1]


def test_what_is_trained_from_an_agent_has_the_template_of_before(tmp_path):
    first = save_chat_agent(tmp_path / "first")
    tokenizer = read_tokenizer(str(first), "model_path")
    tokenizer.save_pretrained(tmp_path / "fine_tuned")
    assert (tmp_path / "fine_tuned" / "chat_template.jinja").read_text() == CHATML
    second = save_chat_agent(tmp_path / "second", tokenizer, system_prompt="Be long .", context_size=1)
    text = AutoTokenizer.from_pretrained(second).apply_chat_template(
        [{"role": "user", "content": x} for x in "ab"], tokenize=False
    )
    assert text == "<|im_start|>system\nBe long .<|im_end|>\n<|im_start|>user\na\n\nb<|im_end|>\n"


@pytest.mark.parametrize(
    ("systems", "asked", "kept"),
    [
        (["Be kind .", "Be kind ."], None, "Be kind ."),
        (["Be kind ."], "Be brief .", "Be kind ."),  # what the prompts were trained behind
        (["Be kind .", "Be short ."], None, None),
        (["Be kind .", None], "Be brief .", "Be brief ."),
        ([None], None, None),
        ([SystemText("Be kind .", [{"name": "look"}])], None, None),
        (["k" * 200], None, None),  # leaves no room for a turn
    ],
)
def test_a_trained_model_keeps_the_system_message_that_all_its_prompts_have(systems, asked, kept):
    keys = AgentSettings(turn_separator="chat_template", max_prompt_length=128, system_prompt=asked)
    prompts = [Dialogue(["a"], system=system) for system in systems]
    assert kept_system_prompt(keys, prompts, chat_tokenizer()) == kept


@pytest.mark.parametrize("kind", ["agent", "agent with a separator", "chat model"])
def test_a_system_prompt_that_is_set_is_read_by_us_and_by_other_programs(tmp_path, kind):
    folder = tmp_path / "agent"
    if kind == "chat model":
        gpt2(vocab_size=261).save_pretrained(folder)
        chat_tokenizer().save_pretrained(folder)
    else:
        separator = "chat_template" if kind == "agent" else "<EOU>"
        save_chat_agent(folder, turn_separator=separator, system_prompt=None, max_new_tokens=9)
    set_system_prompt(folder, "Call me Ann .")
    agent, plain = load_agent(folder), AutoTokenizer.from_pretrained(folder)
    chat = [{"role": "user", "content": "Hi ."}]
    theirs = plain.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
    assert agent.encoder.encode_prompt(["Hi ."]) == theirs
    assert plain.decode(theirs).count("Call me Ann .") == 1
    assert agent.settings.max_new_tokens == (64 if kind == "chat model" else 9)  # a quarter of its 256 positions


def test_agent_folder_survives_a_failed_write(tmp_path, monkeypatch):
    trainer = make_trainer()
    folder = tmp_path / "agent"
    save_agent(folder, trainer.models.policy, trainer.models.tokenizer, trainer.config)
    before = {path: path.read_bytes() for path in folder.rglob("*")}
    with torch.no_grad():
        trainer.models.policy.value_head.bias.fill_(math.pi)

    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(saved_agent, "write_json", full)
    with pytest.raises(UserError, match="No space left on device"):
        save_agent(folder, trainer.models.policy, trainer.models.tokenizer, trainer.config)
    assert {path: path.read_bytes() for path in folder.rglob("*")} == before
    assert [path.name for path in tmp_path.iterdir()] == ["agent"]
