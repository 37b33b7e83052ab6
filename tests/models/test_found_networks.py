"""A network of the user's is built with the arguments of a folder that was found only where that is allowed."""

import json

import pytest

from rlhf_dialog.config.registry import ModelFactory
from rlhf_dialog.config.schema import ClassConfig
from rlhf_dialog.errors import UserError
from rlhf_dialog.models import network
from rlhf_dialog.models.chat_agent import ChatAgent
from rlhf_dialog.models.loading import load_causal_lm
from tests.parts.own_networks import Mean
from tests.parts.tiny import byte_tokenizer

SPEC = {"id": "Mean", "args": {"size": 259}}


@pytest.fixture
def agent(own_networks, tmp_path):
    """A stranger's agent; `own_networks` has registered the class, as --register does."""
    folder = tmp_path / "agent"
    folder.mkdir()
    network.save_policy(network.new_policy(ClassConfig(**SPEC), "model_class", 3), folder)
    byte_tokenizer().save_pretrained(folder)
    (folder / "rlhf_dialog.json").write_text(
        json.dumps({"format_version": 1, "model_class": SPEC, "max_new_tokens": 4})
    )
    return folder


def test_a_network_is_not_built_with_a_strangers_arguments(agent, monkeypatch):
    built = []
    real = network.load_policy
    monkeypatch.setattr(network, "load_policy", lambda *words: built.append(words) or real(*words))
    for refused in (lambda: load_causal_lm(str(agent), "--agent"), lambda: ChatAgent.load(agent)):
        with pytest.raises(
            UserError, match=r"rlhf_dialog\.json was found, .* model_class\.id: Mean does not say .*--trust_config"
        ):
            refused()
    assert built == []
    assert ChatAgent.load(agent, trust_config=True).chat("Hello .") is not None
    assert len(built) == 1


def test_the_network_of_the_users_own_configuration_is_trusted_with_the_same_arguments(agent):
    load_causal_lm(str(agent), "ref_model", trusted_classes=[None, ClassConfig(**SPEC)])
    with pytest.raises(UserError, match=r"model_class\.id: Mean does not say"):
        load_causal_lm(str(agent), "ref_model", trusted_classes=[ClassConfig(id="Mean", args={"size": 260})])


def test_a_class_that_says_what_it_reaches_is_built(agent, monkeypatch):
    class Open(Mean):
        @classmethod
        def reaches_out(cls, args):
            return {} if set(args) <= {"size"} else {"args": "unknown"}

    monkeypatch.setitem(ModelFactory.classes, "Mean", Open)
    load_causal_lm(str(agent), "--agent")
