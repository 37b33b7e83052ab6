"""From the quickstart's dialogues to a folder that the reward loads, and what it is worth to copy."""

import json

import pytest

from experiments.everyday_dialogues.dialogues import write_dialogues
from rlhf_dialog.commands.supervised import train_relevance_model
from rlhf_dialog.data.prompts import load_prompts
from rlhf_dialog.data.sources import load_records
from rlhf_dialog.data.split_halves import divide
from rlhf_dialog.rewards.relevance import RelevanceReward

pytestmark = pytest.mark.slow

SMALL = ["--hidden_size", "32", "--vocab_size", "500", "--device", "cpu", "--pytorch_threads", "1"]


def run(*argv: str) -> int:
    return train_relevance_model([*argv, *SMALL])


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "made_up"
    write_dialogues(folder, 400, seed=3)
    return str(folder)


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    output = tmp_path_factory.mktemp("relevance") / "out"
    steps = [
        *("--members", "2", "--max_steps", "180", "--batch_size", "64", "--bank_size", "100"),
        *("--learning_rate", "1e-2"),
    ]
    assert run("--data_path", data, "--output", str(output), "--half", "reward", *steps) == 0
    return output


def test_the_folder_and_its_report(trained):
    names = "bank.json config.json model.safetensors report.json report.md tokenizer.json tokenizer_config.json"
    assert sorted(path.name for path in trained.iterdir()) == names.split()
    report = json.loads((trained / "report.json").read_text(encoding="utf-8"))
    found = report["validation"]
    assert (report["num_bank"], report["settings"]["half"]) == (100, "reward")
    assert report["learned_half"]["part"] == "reward"
    assert len(report["learned_half"]["assignment"]) == 64
    for metric in (found["r1"], found["r10"]):
        assert metric["low"] <= metric["mean"] <= metric["high"]
    assert found["r10"]["low"] > 0.2  # by chance 0.1


def test_copies_and_constants_are_worth_less_than_nothing(trained, data):
    """As a policy would write them in training: on the prompts of the training split, floored."""
    reward = RelevanceReward(str(trained))
    prompts = load_prompts(data, "train")[:300]

    def paid(answer):
        some = [prompt for prompt in prompts if len(prompt.prompt_turns) > 1]
        return sum(reward([prompt.with_reply(answer(prompt)) for prompt in some])) / len(some)

    def paid_for_copying(turn):
        some = [prompt for prompt in prompts if len(prompt.prompt_turns) >= turn]
        return sum(reward([prompt.with_reply(prompt.prompt_turns[-turn]) for prompt in some])) / len(some)

    true = paid(lambda prompt: prompt.reference)
    copies = [
        lambda prompt: prompt.prompt_turns[-1],
        lambda prompt: prompt.prompt_turns[-2],
        lambda prompt: " ".join(prompt.prompt_turns[-1].split()[1:]),  # without its first word
        lambda prompt: " ".join(prompt.prompt_turns[-2:]),
    ]
    constants = [lambda _, text=text: text for text in ("", "Yes , I am .", "I see .", "Thank you . Goodbye .")]
    assert true > 0.3
    assert all(paid(answer) < 0 for answer in copies + constants)
    assert all(paid_for_copying(turn) < 0 for turn in range(1, 6))
    assert paid(copies[0]) < -1
    assert paid(copies[1]) < -1


def test_the_bank_holds_prompts_of_the_half(trained, data):
    prompts = load_prompts(data, "train")
    parts = divide(load_records(data, "train")).parts
    kept = [prompt.prompt_turns for prompt in prompts if parts[prompt.meta["dialogue"]] == "reward"]
    bank = json.loads((trained / "bank.json").read_text(encoding="utf-8"))
    assert all(turns in kept for turns in bank)
