"""`push_to_hub` of a run: refused at its start, pushed at its end, and a push that fails."""

import ast
import json
import os
import re
import shutil

import pytest

from rlhf_dialog.commands import push_to_hub
from rlhf_dialog.errors import UserError
from rlhf_dialog.runs.publish import hash_of_agent, package, run_of
from tests.parts.evaluations import save_run
from tests.parts.hub_server import TOKEN
from tests.parts.ppo_runs import rows


@pytest.mark.slow
def test_a_run_pushes_its_agent_and_a_longer_one_its_next(run, hub_server, tmp_path, capsys):
    assert run("--push_to_hub", "polite", "--smoke") == 0
    assert hub_server.repos == {}
    assert run("--push_to_hub", "polite") == 0
    assert f"agent published: {hub_server.url}/ada/polite" in capsys.readouterr().err
    files = hub_server.repos["ada/polite"].files
    assert files["model.safetensors"] == (tmp_path / "run_results" / "ppo" / "agent" / "model.safetensors").read_bytes()
    card = files["README.md"].decode()
    score = rows(tmp_path / "run_results" / "ppo")[-1]["objective/score"]
    assert f"\nobjective/score: {score:.4g}\n" in card
    assert "\niteration: 2\n" in card
    assert "- id: LengthMatch\n      weight: 0.5\n" in card
    assert run("--push_to_hub", "polite", "--resume", "--max_iterations", "3") == 0
    assert "\niteration: 3\n" in hub_server.repos["ada/polite"].files["README.md"].decode()
    assert len(hub_server.repos["ada/polite"].commits) == 3


@pytest.mark.slow
def test_a_push_that_fails_leaves_a_finished_run_and_says_how_to_repeat_it(run, hub_server, tmp_path, capsys):
    hub_server.fails = {"commit": 500}
    assert run("--push_to_hub", "polite") == 2
    captured = capsys.readouterr()
    agent = tmp_path / "run_results" / "ppo" / "agent"
    command = "rlhf-dialog push-to-hub --agent run_results/ppo/agent --repo polite"
    assert captured.err.splitlines()[-2].startswith(
        "error: push_to_hub: 'ada/polite' was not published, and the repository is as it was: "
    )
    assert captured.err.splitlines()[-1].endswith(command)
    assert "Traceback" not in captured.err
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert agent / "model.safetensors" in written
    assert TOKEN not in captured.out + captured.err
    assert not [path for path in written if TOKEN.encode() in path.read_bytes()]
    hub_server.fails = {}
    assert push_to_hub.main(command.split()[2:]) == 0
    assert "model.safetensors" in hub_server.repos["ada/polite"].files


def test_a_run_that_cannot_push_does_not_begin(refused, hub_server, monkeypatch):
    hub_server.role = "read"
    assert "push_to_hub: the token may only read" in refused("--push_to_hub", "polite")
    monkeypatch.delenv("HF_TOKEN")
    for words in ([], ["--smoke"]):
        assert "push_to_hub: there is no access token" in refused("--push_to_hub", "polite", *words)


@pytest.mark.slow
def test_a_run_pushed_from_another_folder_names_no_place(run, hub_server, tmp_path, monkeypatch, world):
    """From the folder of the run, a folder below it and an unrelated one: the model and the data look like Hub names."""
    for name, source in (("models/start", world / "model"), ("sets/talks", world / "data")):
        shutil.copytree(source, tmp_path / name)
    words = ["--model_path", "models/start", "--env.args.data_path", "sets/talks"]
    assert run(*words) == 0
    agent = tmp_path / "run_results" / "ppo" / "agent"
    cards = []
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    for folder in (tmp_path, tmp_path / "elsewhere", tmp_path / "elsewhere" / "deep"):
        monkeypatch.chdir(folder)
        assert push_to_hub.main(["--agent", os.path.relpath(agent), "--repo", "polite"]) == 0
        files = hub_server.repos["ada/polite"].files
        cards.append(files["README.md"].decode())
        for content in files.values():
            assert b"models/start" not in content
            assert b"sets/talks" not in content
            assert str(tmp_path).encode() not in content
    assert len(set(cards)) == 1
    assert "\nmodel_path: start\n" in cards[0]
    assert "base_model" not in cards[0]
    assert "of the Hugging Face Hub" not in cards[0]
    assert "data_path: talks\n" in cards[0]


# the evaluation of the card


@pytest.fixture
def agent(tmp_path):
    return save_run(tmp_path / "first", "data", 1, experiment_name="first")


def evaluation(agent) -> None:
    """evaluation.json of the run, as the command writes it for this agent."""
    row = {"score": {"mean": 0.5, "low": 0.4, "high": 0.6}}
    settings = {"agent": "x", "agent_hash": hash_of_agent(agent), "split": "test", "num_prompts": 7, "notes": []}
    tree = {"settings": settings, "metrics": row, "baselines": {"constant_reply": row}}
    (agent.parent / "evaluation.json").write_text(json.dumps(tree))


def test_an_evaluation_is_known_by_the_hash_of_the_agent_and_not_by_names_or_times(agent, tmp_path, caplog):
    evaluation(agent)
    files, name = package(agent, "ada/polite", "--agent")
    assert "| metrics | 0.500 [0.400, 0.600] |" in files["README.md"].decode()
    assert name == "first"
    copy = shutil.copytree(agent.parent, tmp_path / "copy", copy_function=shutil.copyfile) / "agent"
    os.utime(copy.parent / "evaluation.json", (1, 1))
    assert run_of(copy).evaluation is not None
    best = shutil.copytree(agent, agent.parent / "best_agent")
    assert run_of(best).evaluation is not None  # the same files
    (best / "rlhf_dialog.json").write_text('{"format_version": 1, "temperature": 0.5}')
    (copy / "model.safetensors").write_bytes((copy / "model.safetensors").read_bytes()[:-1] + b"\x07")
    (copy / "notes.txt").write_text("no file of a model")
    assert run_of(best).evaluation is None
    assert "evaluation.json is not of this agent as it is now, so the card is without it" in caplog.text
    assert run_of(copy).evaluation is None
    assert run_of(copy, copy.parent / "evaluation.json").evaluation is not None
    (agent / "notes.txt").write_text("no file of a model")
    assert run_of(agent).evaluation is not None


@pytest.mark.parametrize("text", ["{", "[]", '{"settings": 1}'])
def test_a_file_that_is_not_an_evaluation(text, agent):
    (agent.parent / "evaluation.json").write_text(text)
    with pytest.raises(UserError, match=r"--evaluation: .*evaluation\.json"):
        run_of(agent)


def test_the_versions_are_those_of_the_newest_checkpoint(agent):
    place = agent.parent / "checkpoints" / "iter_000002"
    place.mkdir(parents=True)
    (place / "trainer.json").write_text(json.dumps({"versions": {"torch": "2.0-of-the-run"}}))
    (agent.parent / "checkpoints" / "latest").write_text("iter_000002")
    assert run_of(agent).versions == {"torch": "2.0-of-the-run"}
    for damaged in ("[]", "{"):
        (place / "trainer.json").write_text(damaged)
        assert run_of(agent).versions["torch"] not in ("", "2.0-of-the-run")
    shutil.rmtree(agent.parent / "checkpoints")
    assert run_of(agent).versions["torch"] != "2.0-of-the-run"


OWN = ["Is it far ?", "Ten minutes .", 'And "by bus" ?']


@pytest.mark.parametrize(("texts", "is_own"), [("all", True), ("some", False), ("none", False)])
def test_the_example_of_a_card_is_a_prompt_of_the_run_whose_texts_may_leave_this_machine(texts, is_own, agent):
    config, ledger = agent.parent / "config.yaml", agent.parent / "ledger.jsonl"
    config.write_text(config.read_text().replace("ledger_texts: some", f"ledger_texts: {texts}"))
    prompts = [None, ["Read /home/ada/notes"], ["x" * 301], ["```"], OWN, ["Another ?"]]
    ledger.write_text("".join(json.dumps({"iteration": 1, "prompt": prompt}) + "\n" for prompt in prompts))
    card = package(agent, "ada/polite", "--agent")[0]["README.md"].decode()
    (call,) = re.findall(r"^ChatAgent.*$", card, re.MULTILINE)
    expression = ast.parse(call, mode="eval").body
    said = [*(ast.literal_eval(one.value) for one in expression.keywords), ast.literal_eval(expression.args[0])]
    assert (said == [OWN[:-1], OWN[-1]]) is is_own
    ledger.write_text(json.dumps({"iteration": 1, "prompt": ["x" * 301]}) + "\n")
    assert "Do you have a room" in package(agent, "ada/polite", "--agent")[0]["README.md"].decode()
