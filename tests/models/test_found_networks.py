"""A network of the user's is built with the arguments of a folder that was found only where that is allowed."""

import json

import pytest

from rlhf_dialog.config.schema import ClassConfig
from rlhf_dialog.errors import UserError
from rlhf_dialog.models import network
from rlhf_dialog.models.chat_agent import ChatAgent
from rlhf_dialog.models.loading import load_causal_lm
from tests.parts.tiny import byte_tokenizer

SPEC = {"id": "Mean", "args": {"size": 259}}


def test_a_network_is_not_built_with_a_strangers_arguments(own_networks, tmp_path, monkeypatch):
    """`own_networks` has registered the class, as --register does."""
    agent = tmp_path / "agent"
    agent.mkdir()
    network.save_policy(network.new_policy(ClassConfig(**SPEC), "model_class", 3), agent)
    byte_tokenizer().save_pretrained(agent)
    keys = {"format_version": 1, "model_class": SPEC, "max_new_tokens": 4}
    (agent / "rlhf_dialog.json").write_text(json.dumps(keys))
    built = []
    real = network.load_policy
    monkeypatch.setattr(network, "load_policy", lambda *words: built.append(words) or real(*words))
    other = [None, ClassConfig(id="Mean", args={"size": 260})]
    for refused in (
        lambda: load_causal_lm(str(agent), "--agent"),
        lambda: load_causal_lm(str(agent), "ref_model", trusted_classes=other),
        lambda: ChatAgent.load(agent),
    ):
        with pytest.raises(UserError, match=r"rlhf_dialog\.json was found, .* model_class\.id: Mean .*--trust_config"):
            refused()
    assert built == []
    assert ChatAgent.load(agent, trust_config=True).chat("Hello .") is not None
    load_causal_lm(str(agent), "ref_model", trusted_classes=[None, ClassConfig(**SPEC)])  # the run's own configuration
    assert len(built) == 2
