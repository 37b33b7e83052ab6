"""The folder of an agent is a plain causal LM, and survives a failed write."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf_dialog.errors import UserError
from rlhf_dialog.models import saved_agent
from rlhf_dialog.models.chat_agent import AGENT_FILE, AgentSettings, ChatAgent, read_settings
from rlhf_dialog.models.loading import Policy
from rlhf_dialog.models.saved_agent import save_agent
from tests.parts.tiny import byte_tokenizer, chat_tokenizer, gpt2, llama
from tests.parts.trainers import make_trainer

pytestmark = pytest.mark.thorough


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
    assert settings == {
        "format_version": 1,
        "turn_separator": "<EOU>",
        "context_size": 5,
        "max_prompt_length": 99,
        "max_new_tokens": 5,
        "temperature": 0.6,
        "top_k": 7,
        "top_p": 1.0,
    }
    head = tmp_path / "agent/value_head.safetensors"
    assert head.exists() == (make is None)
    if make is None:
        assert torch.equal(load_file(head)["weight"], policy.value_head.weight)
        assert policy.value_head.weight.any()
    assert not list((tmp_path / "agent").glob("*.bin"))
    assert {path.name for path in tmp_path.iterdir()} == {"agent"}


def test_an_agent_keeps_its_system_prompt(tmp_path):
    """A model that was trained behind a system prompt is talked to behind it."""
    tokenizer, policy = chat_tokenizer(), Policy(gpt2(vocab_size=261)).eval()
    keys = {"turn_separator": "chat_template", "system_prompt": "Answer in one short sentence ."}
    save_agent(tmp_path / "agent", policy, tokenizer, AgentSettings(**keys, max_new_tokens=4))
    agent = ChatAgent.load(tmp_path / "agent")
    assert agent.settings.system_prompt == keys["system_prompt"]
    assert "system\nAnswer in one short sentence ." in tokenizer.decode(agent.encoder.encode_prompt(["Hello"]))


def test_an_agent_keeps_what_a_chat_shows(tmp_path):
    keys = {"introduction": "A waiter.", "chat_temperature": 0.0, "chat_top_p": 0.9}
    for given in (keys, {}):
        save_agent(tmp_path / "agent", Policy(gpt2()).eval(), byte_tokenizer(), AgentSettings(**given))
        stored = json.loads((tmp_path / "agent" / AGENT_FILE).read_text())
        assert {key: stored[key] for key in keys if key in stored} == given  # older versions do not know them
        assert read_settings(tmp_path / "agent").introduction == given.get("introduction")


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
