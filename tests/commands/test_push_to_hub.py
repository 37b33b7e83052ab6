"""The command push-to-hub from its arguments to the repository, and the pushed agent in the other commands."""

import json
import shutil

import pytest
import torch
from huggingface_hub import ModelCard
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf_dialog.commands import evaluate, push_to_hub
from rlhf_dialog.commands.options import parse_options
from rlhf_dialog.models.chat_agent import ChatAgent
from rlhf_dialog.models.weights import save_module
from tests.parts.evaluations import save_run
from tests.parts.hub_server import TOKEN
from tests.parts.tiny import write_data


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    root = tmp_path_factory.mktemp("home_of_ada")
    return save_run(root / "first", str(write_data(root / "my_data", 3)), 1, experiment_name="first")


def push(*words) -> int:
    return push_to_hub.main([str(word) for word in words])


def test_the_folder_of_a_dry_run_is_an_agent(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert push("--agent", trained, "--repo", "ada/polite", "--dry_run") == 0, capsys.readouterr().err
    folder = tmp_path / "hub_polite"
    listed = [line.split() for line in capsys.readouterr().out.splitlines()]
    sizes = {path.name: f"{path.stat().st_size:,}" for path in folder.iterdir()}
    assert {name: size for size, _, name in listed} == sizes
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert model.config.vocab_size == len(tokenizer)
    names = [path / "generation_config.json" for path in (folder, trained)]
    assert json.loads(names[0].read_text()) == json.loads(names[1].read_text())
    text = "Is the harbour far ?"
    assert ChatAgent.load(folder).chat(text) is not None
    assert ChatAgent.load(folder).settings.max_new_tokens == 9
    card = ModelCard.load(folder / "README.md")
    assert (card.data.library_name, card.data.rlhf_dialog_run) == ("transformers", "first")
    names = {"model.safetensors", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in folder.iterdir()} == {*names, "rlhf_dialog.json", "README.md"}


def test_a_pushed_agent_is_what_a_dry_run_shows_and_loads_by_its_name(
    trained, hub_server, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    trained = shutil.copytree(trained.parent, tmp_path / "run") / "agent"
    save_module(torch.nn.Linear(32, 1), trained / "value_head.safetensors")
    assert push("--agent", trained, "--repo", "polite", "--private") == 0, capsys.readouterr().err
    assert f"published: {hub_server.url}/ada/polite" in capsys.readouterr().err
    repo = hub_server.repos["ada/polite"]
    assert (repo.private, len(repo.commits)) == (True, 2)
    assert push("--agent", trained, "--repo", "ada/polite", "--dry_run", "--output", "dry") == 0
    assert {p.name: p.read_bytes() for p in (tmp_path / "dry").iterdir()} == {
        name: x for name, x in repo.files.items() if name != ".gitattributes"
    }
    assert 'ChatAgent.load("ada/polite")' in repo.files["README.md"].decode()
    repo.files.update({"evil.py": b"print()", "pytorch_model.bin": b"pickle", "sub/config.json": b"{}"})
    agent = ChatAgent.load("ada/polite")
    assert agent.settings.max_new_tokens == 9
    cached = {path.name for path in (tmp_path / "hub_cache").glob("models--ada--polite/snapshots/*/*")}
    assert {"model.safetensors", "value_head.safetensors"} <= cached
    assert not cached & {"evil.py", "pytorch_model.bin", "sub"}


@pytest.mark.slow
def test_agent_and_baseline_of_an_evaluation_come_from_the_hub(trained, hub_server, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert push("--agent", trained, "--repo", "polite") == 0
    data = trained.parent.parent / "my_data"
    words = ["--agent", "ada/polite", "--baseline", "ada/polite", "--max_prompts", "2", "--output", "e.json"]
    assert evaluate.main(words) == 2
    assert "--data_path" in capsys.readouterr().err
    assert evaluate.main([*words, "--data_path", str(data)]) == 0, capsys.readouterr().err
    result = json.loads((tmp_path / "e.json").read_text())
    assert result["before"]["mean_words"] == result["after"]["mean_words"]


def test_a_config_in_the_working_directory_is_not_that_of_an_agent_of_the_hub(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(trained.parent / "config.yaml", tmp_path)
    assert (
        evaluate.read_run(parse_options(evaluate.EvaluateOptions, ["--agent", "polite", "--output", "e.json"])) is None
    )
