"""The recurrent network of docs/MODELS.md as a user brings it: it trains, resumes, is exported, evaluated, and chats."""

import json

import pytest
import torch
from safetensors.torch import load_file

from rlhf_dialog import ChatAgent
from rlhf_dialog.commands import chat, evaluate, export
from rlhf_dialog.config.registry import ModelFactory
from tests.parts.own_networks import CODE
from tests.parts.ppo_runs import rows, without_clocks

pytestmark = pytest.mark.slow
ARGS = "{vocab_size: 259, hidden_size: 12}"
POLICY = ("--model_class", f"{{id: GruPolicy, args: {ARGS}}}")
CRITIC = ("--critic_class", f"{{id: GruCritic, args: {ARGS}}}")


def test_a_network_trains_resumes_chats_and_is_evaluated(own_networks, run, tmp_path, monkeypatch, capsys):
    assert run(*POLICY, *CRITIC, "--experiment_name", "whole", "--max_iterations", "3") == 0
    assert run(*POLICY, *CRITIC, "--experiment_name", "parts", "--save_interval", "1") == 0
    assert run(*POLICY, *CRITIC, "--experiment_name", "parts", "--max_iterations", "3", "--resume") == 0
    whole, parts = tmp_path / "run_results" / "whole", tmp_path / "run_results" / "parts"
    assert without_clocks(whole) == without_clocks(parts)
    assert rows(whole)[0]["objective/kl"] == pytest.approx(0, abs=1e-6)
    ours, theirs = (load_file(folder / "agent" / "model.safetensors") for folder in (whole, parts))
    assert all(torch.equal(x, theirs[name]) for name, x in ours.items())
    assert {"trunk.embedding.weight", "head.weight"} <= set(ours)
    beside = json.loads((whole / "agent" / "rlhf_dialog.json").read_text(encoding="utf-8"))
    assert beside["model_class"] == {"id": "GruPolicy", "args": {"vocab_size": 259, "hidden_size": 12}}

    agent = str(whole / "agent")
    torch.manual_seed(0)
    before = ChatAgent.load(agent, trust_config=True).chat("Where is the ladder ?")
    monkeypatch.setattr(ModelFactory, "classes", {})
    (tmp_path / "my_network.py").write_text(CODE, encoding="utf-8")
    monkeypatch.setattr("builtins.input", lambda _: "quit")
    asked = {
        chat: ["--agent", agent],
        evaluate: ["--agent", agent, "--output", "e.json", "--max_prompts", "4"],
        export: ["--run", str(whole), "--output", "exported"],
    }
    for command, argv in asked.items():
        capsys.readouterr()
        monkeypatch.setattr(ModelFactory, "classes", {})
        assert command.main(argv) == 2
        assert "unknown network 'GruPolicy'" in capsys.readouterr().err
        own = [*argv, "--register", "my_network.py"]
        assert command.main(own) == 2
        assert "--trust_config" in capsys.readouterr().err
        assert command.main([*own, "--trust_config"]) == 0, capsys.readouterr().err
    torch.manual_seed(0)
    assert ChatAgent.load(agent, trust_config=True).chat("Where is the ladder ?") == before
    capsys.readouterr()
    exported = load_file(tmp_path / "exported" / "model.safetensors")
    assert all(torch.equal(x, exported[name]) for name, x in ours.items())
    assert run(*POLICY, "--model_path", agent, "--experiment_name", "further", "--use_share_model", "true") == 0
    assert "starts as its class makes it" not in capsys.readouterr().err
    assert rows(tmp_path / "run_results" / "further")[0]["objective/kl"] == pytest.approx(0, abs=1e-6)


def test_a_copy_of_the_network_is_its_critic_and_a_smoke_run_answers(own_networks, run, capsys):
    assert run(*POLICY, "--smoke", "--kl_in", "loss") == 0
    assert "starts as its class makes it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("--model_class", "{id: GruPolic}"), ["model_class", "'GruPolic'", "'GruPolicy'"]),
        (("--critic_class", "GruCritic"), ["critic_class", "'GruCritic'"]),
        (("--model_class", "{id: GruPolicy, args: {vocab_size: 99}}"), ["'GruPolicy'", "99"]),
    ],
)
def test_what_does_not_fit_is_the_users_error(own_networks, refused, words, found):
    message = refused(*words)
    assert all(word in message for word in found)


def test_another_network_is_another_run(own_networks, run, capsys):
    assert run(*POLICY, *CRITIC, "--max_iterations", "1") == 0
    capsys.readouterr()
    assert run(*POLICY, "--critic_class", "{id: GruCritic, args: {vocab_size: 300}}", "--resume") == 2
    assert "critic_class: {" in capsys.readouterr().err
    assert run(*POLICY, "--resume") == 2
    assert "critic_class: null here, {" in capsys.readouterr().err
