"""On two threads and on four a run gives the same bits each time, also when it is killed and resumed.

The sums of a matrix product are in a fixed order for a number of threads, but the gradient of `x[index]` is not: torch adds it
with atomics in parallel where it has more than 32768 numbers. With such a gather in models/packing.py the runs of gae, LoRA and
the separate critic fail here, so they have enough tokens.
"""

import json
import shutil
import signal

import pytest

from tests.parts import tiny
from tests.parts.forked_cli import ForkedCLI
from tests.parts.processes import load_script

hashes = load_script("scripts/run_hashes.py")
pytestmark = pytest.mark.slow
MODULES = (
    *("nltk", "transformers.models.gpt2.modeling_gpt2", "trl", "peft", "rlhf_dialog.runs.agent"),
    *("rlhf_dialog.training.supervised.sft", "rlhf_dialog.training.supervised.preference_model"),
    "rlhf_dialog.training.supervised.relevance.model",
)
CHECKPOINT = ("latest", "complete.json", "checkpoint-members.pt", "night")  # the last file of each kind of checkpoint
PPO = hashes.SINGLE_TURN | {
    "model_path": "../inputs/model",
    "env": {"args": {"data_path": "../inputs/data"}},
    "advantage_estimator": "gae",
    "use_share_model": True,
    "num_responses_per_prompt": 4,
    "max_prompt_length": 120,
    "per_device_microbatch_size": 8,
    "ppo_epoch": 1,
    "max_iterations": 2,
    "eval_interval": 0,
    "sample_interval": 0,
    "pytorch_threads": None,
}
STAGE = {
    "data_path": "../inputs/data",
    "max_steps": 3,
    "batch_size": 16,
    "learning_rate": 2e-3,
    "checkpoint_minutes": 1e-9,
}
RUNS = {
    "gae": ("train", PPO),
    "lora": ("train", PPO | {"advantage_estimator": "rloo", "use_lora": True, "lora_r": 4, "lora_alpha": 8}),
    "separate_critic": ("train", PPO | {"use_share_model": False}),
    "sft": (
        "train-sft",
        STAGE | {"n_layer": 1, "n_embd": 128, "max_eval_prompts": 8, "evals": 3, "patience": 3, "dropout": 0.1},
    ),
    "preference": (
        "train-preference-model",
        STAGE | {"data_path": "../inputs/pairs.jsonl", "model_path": "../inputs/model", "num_samples": 0},
    ),
    "relevance": ("train-relevance-model", STAGE | {"architecture": "convolution", "members": 2, "bank_size": 8}),
    "night": ("feedback learn", hashes.NIGHT | {"sft_data_path": "../inputs/data", "batch_size": 16, "steps": 6}),
}


@pytest.fixture(scope="module")
def cli(request):
    cli = ForkedCLI(*MODULES, threads=request.param)
    yield cli
    cli.close()


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    (root / "inputs").mkdir()
    hashes.write_rows(root / "inputs")
    tiny.write_data(root / "inputs/data", 30)
    tiny.gpt2(n_embd=256, n_layer=1).save_pretrained(root / "inputs/model")
    tiny.byte_tokenizer().save_pretrained(root / "inputs/model")
    (root / "inputs/model/rlhf_dialog.json").write_text('{"format_version": 1, "max_new_tokens": 6}', encoding="utf-8")
    return root


def begin(cli, root, name, folder):
    """Write the settings of the run into the folder; returns the words that start it."""
    command, settings = RUNS[name]
    folder.mkdir()
    if command == "feedback learn":
        for words in ("init --run bot --agent ../inputs/model", "import --run bot ../inputs/ratings.jsonl"):
            assert cli.run(folder, "feedback", *words.split()) == 0, (folder / "said").read_text()
        (folder / "bot/config.yaml").write_text(json.dumps(settings), encoding="utf-8")
        return ["feedback", "learn", "--run", "bot"]
    (folder / "run.yaml").write_text(json.dumps(settings), encoding="utf-8")
    return [command, "--config", "run.yaml", *(() if command == "train" else ("--output", "runs/run"))]


def bits(folder):
    """The hashes of weights, optimizers and metrics that a run left, but of none that tells how long or where it ran."""
    parts = hashes.hashes_of_folder(folder)
    parts["metrics"] = {name: column for name, column in parts["metrics"].items() if not name.startswith("memory/")}
    return {part: parts[part] for part in ("weights", "optimizer", "metrics", "random numbers") if parts[part]}


@pytest.mark.parametrize(("cli", "name"), [*((2, name) for name in RUNS), (4, "gae")], indirect=["cli"])
def test_the_same_bits_after_a_kill(cli, root, name, tmp_path):
    shutil.copytree(root / "inputs", tmp_path / "inputs")
    found = {}
    for attempt in ("whole", "killed"):
        folder = tmp_path / attempt
        words = begin(cli, root, name, folder)
        if attempt == "killed":
            assert cli.run(folder, *words, after=CHECKPOINT) == -signal.SIGKILL
            words += ["--resume", "auto"] if words[0] == "train" else []
        assert cli.run(folder, *words) == 0, (folder / "said").read_text()
        found[attempt] = bits(folder)
    assert found["whole"]["weights"]
    assert found["killed"] == found["whole"]
