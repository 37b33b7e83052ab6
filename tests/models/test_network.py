"""Networks of the user's: what a run asks of them; with the recurrent one of docs/MODELS.md."""

import copy
import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from rlhf_dialog.config.registry import ModelFactory
from rlhf_dialog.config.schema import ClassConfig
from rlhf_dialog.errors import UserError
from rlhf_dialog.models import network
from rlhf_dialog.models.chat_agent import ChatAgent
from rlhf_dialog.models.loading import Form, build_trained, load_causal_lm, load_policy_lm, prepare_lm
from rlhf_dialog.models.network import num_embeddings
from rlhf_dialog.models.policy import packs
from rlhf_dialog.models.token_batch import TokenBatch
from tests.parts.plain import new_case
from tests.parts.tiny import byte_tokenizer
from tests.parts.token_batches import critic_values
from tests.parts.trainers import make_trainer, settings

pytestmark = pytest.mark.usefixtures("own_networks")
SIZES = {"vocab_size": 61, "hidden_size": 12}


def loaded(name="GruPolicy", args=SIZES):
    return prepare_lm(network.new_policy(ClassConfig(id=name, args=args), "model_class", 3), name, "model_class", True)


@pytest.mark.parametrize(
    "keys", [{}, {"critic_class": {"id": "GruCritic", "args": SIZES}}, {"use_share_model": True}], ids=str
)
def test_each_kind_of_critic_starts_and_learns(keys):
    config = settings(**{"use_share_model": False, **keys}, model_class={"id": "GruPolicy", "args": SIZES})
    policy, critic = build_trained(config, loaded(), {})
    case = new_case(2, holes=False)
    packed = case.tokens.pack()
    values = policy(packed, 1.0)[2] if critic is None else critic(packed)
    assert values.shape == packed.targets.shape
    values.sum().backward()
    used = policy if critic is None else critic
    heads = [name for name, p in used.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0]
    everything = [f"trunk.network.{name}" for name, _ in critic.trunk.network.named_parameters()] if critic else []
    assert heads == (everything if "critic_class" in keys else ["value_head.weight", "value_head.bias"])


def test_the_seed_makes_the_network_and_leaves_the_generators():
    torch.manual_seed(9)
    first, second, other = (
        network.new_policy(ClassConfig(id="GruPolicy", args=SIZES), "k", seed) for seed in (1, 1, 2)
    )
    drawn = torch.rand(())
    torch.manual_seed(9)
    assert drawn == torch.rand(())
    assert torch.equal(first.trunk.network.head.weight, second.trunk.network.head.weight)
    assert not torch.equal(first.trunk.network.head.weight, other.trunk.network.head.weight)
    assert num_embeddings(first) == 61


def test_weights_are_saved_under_the_names_of_the_network(tmp_path):
    lm = loaded()
    network.save_policy(lm, tmp_path)
    again = network.load_policy(ClassConfig(id="GruPolicy", args=SIZES), str(tmp_path), "--agent")
    ids = torch.arange(4).unsqueeze(0)
    assert torch.equal(again(ids).logits, lm(ids).logits)
    with pytest.raises(UserError, match=r"--agent: '.*model.safetensors' does not fit the network 'GruPolicy'"):
        network.load_policy(ClassConfig(id="GruPolicy", args={**SIZES, "hidden_size": 10}), str(tmp_path), "--agent")


def test_a_model_of_transformers_takes_the_fast_path(tmp_path):
    sizes = {"vocab_size": 61, "n_positions": 64, "n_layer": 1, "n_head": 2}
    ModelFactory.register("Mine", lambda width: GPT2LMHeadModel(GPT2Config(**sizes, n_embd=width)))
    lm = loaded("Mine", {"width": 16})
    assert isinstance(lm, GPT2LMHeadModel)
    assert packs(lm)
    network.save_policy(lm, tmp_path)
    again = network.load_policy(ClassConfig(id="Mine", args={"width": 16}), str(tmp_path), "--agent")
    assert all(torch.equal(x, again.state_dict()[name]) for name, x in lm.state_dict().items())


class Careless(nn.Module):
    """A network with one fault."""

    def __init__(self, fault):
        super().__init__()
        self.fault, self.embedding, self.head = fault, nn.Embedding(9, 8), nn.Linear(8, 11 if fault == "small" else 9)
        self.gru = nn.GRU(8, 8, batch_first=True)

    def forward(self, input_ids, attention_mask, past_key_values=None, use_cache=False):
        if self.fault == "raises":
            raise KeyError("weights")
        x = self.embedding(input_ids) * 3
        if self.fault != "padding":
            x = x * attention_mask[:, -x.shape[1] :].unsqueeze(2)
        hidden = x.cumsum(dim=1)
        if self.fault == "future":
            hidden = hidden + x.flip(1).cumsum(dim=1).flip(1)
        if self.fault == "right":
            hidden = hidden + (attention_mask == 0).sum() * (attention_mask[0, 0] == 1)
        if self.fault == "shape":
            return hidden[:, -1]
        return SimpleNamespace(logits=self.head(hidden), past_key_values=torch.ones(()))


class Nameless(nn.Linear):
    def forward(self, x):
        return x


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: 3, "'Faulty' is a int, not a torch.nn.Module"),
        (lambda: Nameless(2, 2), "forward of 'Faulty' .* raised TypeError: .* unexpected keyword argument"),
        (lambda: Careless("raises"), r"forward of 'Faulty' .* raised KeyError: 'weights' at .*test_network.py:\d+"),
        (lambda: Careless("shape"), r"forward of 'Faulty' returns a tensor \(1, 8\) for ids \(1, 3\), not logits"),
        (lambda: Careless("small"), "forward of 'Faulty' .* raised IndexError"),
        (lambda: Careless("padding"), r"changes its predictions by .* nats when a .*uses the attention_mask"),
        (lambda: Careless("right"), r"changes its predictions by .* nats when a row is padded on the right"),
        (lambda: Careless("future"), "nats when its last tokens are cut off"),
        (lambda: Careless("state"), r"changes its predictions by .* nats when tokens come one by one"),
        (lambda: 1 / 0, "'Faulty' raised ZeroDivisionError"),
    ],
)
def test_what_is_missing_is_said(make, message):
    ModelFactory.register("Faulty", make)
    with pytest.raises(UserError, match=f"model_class: .*{message}"):
        loaded("Faulty", {})


def test_a_critic_and_a_value_head_need_their_parts():
    with pytest.raises(UserError, match=r"critic_class: forward of 'GruPolicy' returns a SimpleNamespace"):
        network.new_critic(ClassConfig(id="GruPolicy", args=SIZES), 0, {})
    config = settings(model_class={"id": "Mean", "args": {"size": 61}})
    with pytest.raises(UserError, match=r"model_class: 'Mean' has no get_output_embeddings\(\)"):
        build_trained(config, loaded("Mean", {"size": 61}), {})
    with pytest.raises(UserError, match=r"--agent: unknown network 'Gone'.* --register"):
        network.new_policy(ClassConfig(id="Gone"), "--agent")


class Ids(nn.Module):
    """A critic whose value at a token is its id."""

    def __init__(self, dims):
        super().__init__()
        self.dims, self.one = dims, nn.Parameter(torch.ones(()))

    def forward(self, input_ids, attention_mask):
        values = self.one * input_ids
        return values if self.dims == 2 else values.unsqueeze(2)


@pytest.mark.parametrize("dims", [2, 3])
def test_a_critic_values_each_token_before_it_was_written(dims):
    ModelFactory.register("Ids", Ids)
    critic = network.new_critic(ClassConfig(id="Ids", args={"dims": dims}), 0, {})
    ones = torch.ones(2, 2, dtype=torch.bool)
    tokens = TokenBatch(torch.tensor([[5, 6], [0, 7]]), ones.triu(), torch.tensor([[8, 9], [3, 4]]), ones)
    assert critic_values(critic, tokens).tolist() == [[6, 8], [7, 3]]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model_class": {"id": "Mean"}, "use_lora": True}, "model_class: .* use_lora: true"),
        ({"use_share_model": True}, "critic_class: under use_share_model: true"),
        ({"advantage_estimator": "reinforce_pp"}, "critic_class: under advantage_estimator: reinforce_pp"),
    ],
)
def test_keys_that_contradict_a_network(keys, message):
    with pytest.raises(UserError, match=message):
        settings(**{"critic_class": {"id": "Mean"}, "use_share_model": False} | keys)


def test_a_trainer_on_a_network_passes_its_checks():
    lm = loaded("GruPolicy", {"vocab_size": 259, "hidden_size": 12})
    lm.generation_config = SimpleNamespace(eos_token_id=None)
    trainer = make_trainer(new_lm=lambda _: copy.deepcopy(lm))
    first, second = trainer.step(), trainer.step()
    assert (first["objective/kl"], second["iteration"]) == (pytest.approx(0, abs=1e-6), 2)


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
    load_policy_lm(settings(model_class=SPEC, model_path=str(agent)), Form())  # starts with the agent's weights
    assert len(built) == 3
