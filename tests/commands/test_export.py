"""`rlhf-dialog export`: the agent of a checkpoint is that of the run, and nothing of a found config.yaml reaches out."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from rlhf_dialog import ChatAgent, main
from rlhf_dialog.commands import export
from tests.parts import tiny

KINDS = {
    "shared": {"use_share_model": True},
    "separate": {"use_share_model": False},
    "lora": {"use_lora": True, "lora_r": 2, "use_share_model": True},
    "lora_separate": {"use_lora": True, "lora_r": 2, "use_share_model": False},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with a finished run of two iterations for every kind of model, and a checkpoint of each iteration."""
    patch = pytest.MonkeyPatch()
    root = tmp_path_factory.mktemp("runs")
    patch.chdir(root)
    tiny.gpt2().save_pretrained("model")
    tiny.byte_tokenizer().save_pretrained("model")
    tiny.write_data(root / "data", 6)
    settings = {
        **{"model_path": "model", "env": {"args": {"data_path": "data"}}, "reward_class": {"id": "LengthMatch"}},
        **{"rollout_batch_size": 4, "num_mini_batch": 2, "ppo_epoch": 1, "max_new_tokens": 5, "max_prompt_length": 40},
        **{"max_iterations": 2, "save_interval": 1, "lr": 1e-2, "device": "cpu", "pytorch_threads": 1},
    }
    for kind, keys in KINDS.items():
        Path(f"{kind}.yaml").write_text(yaml.safe_dump(settings | keys), encoding="utf-8")
        assert main(["--config", f"{kind}.yaml"]) == 0
    yield root / "run_results"
    patch.undo()


@pytest.fixture
def run(runs, tmp_path, monkeypatch):
    """The folder of a copied run without its `agent/`, beside a copy of the model; the working folder is theirs."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(runs.parent / "model", "model")

    def copied(kind: str = "shared") -> Path:
        shutil.copytree(runs / kind, kind)
        shutil.rmtree(Path(kind) / "agent")
        return Path(kind)

    return copied


def exported(run: Path, output: str, *words: str) -> int:
    return export.main(["--run", str(run), "--output", output, *words])


def change(path: Path, **keys) -> None:
    """Other values of some keys of a checkpoint's YAML, as if it had been written with them."""
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | keys), encoding="utf-8")
    record = path.with_name("trainer.json")
    state = json.loads(record.read_text())
    state["files"][path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    state["sizes"][path.name] = path.stat().st_size
    del state["sha256"]
    record.write_text(json.dumps(state))


def refused(capsys, *words: str) -> None:
    """The last command wrote one error with these words, and no folder `out`."""
    error = capsys.readouterr().err
    assert error.startswith("error: ") or "\nerror: " in error
    assert "Traceback" not in error
    for word in words:
        assert word in error
    assert not Path("out").exists()
    assert not list(Path().glob(".out*"))


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_newest_checkpoint_of_a_finished_run_gives_its_agent_byte_for_byte(runs, run, kind, capsys):
    assert exported(run(kind), "out") == 0
    wanted = {path.name: path.read_bytes() for path in (runs / kind / "agent").iterdir()}
    assert {path.name: path.read_bytes() for path in Path("out").iterdir()} == wanted
    assert ("value_head.safetensors" in wanted) == ("separate" not in kind)
    assert "agent of iteration 2 saved; talk to it: rlhf-dialog chat --agent out" in capsys.readouterr().err
    assert isinstance(ChatAgent.load("out").chat("Hello ."), str)


@pytest.mark.parametrize(("kind", "name"), [("shared", "1"), ("lora", "iter_000001")])
def test_an_earlier_checkpoint_gives_other_weights(runs, run, kind, name):
    assert exported(run(kind), "out", "--checkpoint", name) == 0
    first, last, base = (
        load_file(path / "model.safetensors") for path in (Path("out"), runs / kind / "agent", Path("model"))
    )
    for weights in (last, base):
        assert set(first) == set(weights)
        assert any(not first[key].equal(weights[key]) for key in first)
    assert isinstance(ChatAgent.load("out").chat("Hello ."), str)


def test_what_does_not_matter(runs, run):
    """The pointer to the newest checkpoint, a reward that is not registered here, and a damaged file that is not read."""
    folder = run()
    (folder / "checkpoints/latest").unlink()
    (folder / "checkpoints/iter_000002/policy_optimizer.safetensors").write_bytes(b"")
    change(folder / "checkpoints/iter_000002/config.yaml", reward_class={"id": "Politeness", "args": {"x": 1}})
    assert exported(folder, "out") == 0
    same_model(runs / "shared")


def same_model(run: Path) -> None:
    model = "model.safetensors"
    assert (Path("out") / model).read_bytes() == (run / "agent" / model).read_bytes()


# what cannot be exported


def test_what_is_not_there_or_in_the_way(run, capsys):
    folder = run()
    for words, found in (
        (["--checkpoint", "iter_000007"], "choose one of iter_000001, iter_000002"),
        (["--checkpoint", "../../agent"], "choose one of iter_000001, iter_000002"),
        (["--output", "model"], "output: 'model' is not empty"),
    ):
        assert exported(folder, "out", *words) == 2
        refused(capsys, found)


@pytest.mark.parametrize(
    ("file", "damage"),
    [("policy.safetensors", "gone"), ("trainer.json", "cut"), ("policy.safetensors", "flip"), ("config.yaml", "flip")],
)
def test_a_damaged_checkpoint(run, file, damage, capsys):
    path = run() / "checkpoints/iter_000002" / file
    data = bytearray(path.read_bytes())
    path.unlink()
    if damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "flip":
        data[-9] ^= 1
        path.write_bytes(data)
    assert exported(Path("shared"), "out") == 2
    refused(capsys, "iter_000002", *([file, "SHA-256", "--checkpoint iter_000001"] if damage == "flip" else []))


def test_a_base_model_that_has_moved(runs, run, capsys):
    folder = run("lora")
    Path("model").rename("moved")
    assert exported(folder, "out") == 2
    refused(capsys, "model_path is 'model', which is not a folder here", "--model_path DIR")
    assert exported(folder, "out", "--model_path", "moved") == 0
    same_model(runs / "lora")


def test_another_base_model_is_refused_for_an_adapter_alone(runs, run, capsys):
    tiny.gpt2(seed=5).save_pretrained("model")
    assert exported(run("lora"), "out") == 2
    refused(capsys, "its adapter belongs to another model than 'model'", "--model_path")
    assert exported(run("shared"), "out") == 0
    same_model(runs / "shared")
    tiny.gpt2(n_layer=1).save_pretrained("model")
    shutil.rmtree("out")
    assert exported(Path("shared"), "out") == 2
    refused(capsys, "iter_000002: is damaged or does not fit this run")


# the configuration was found


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ({"model_path": "somebody/their-model"}, "model_path is 'somebody/their-model'"),
        (
            {"env": {"args": {"data_path": "data", "tokenizer_path": "somebody/their-words"}}},
            "env.args.tokenizer_path is 'somebody/their-words'",
        ),
    ],
)
def test_a_name_on_the_hub_is_refused_unless_the_configuration_is_trusted(run, keys, found, capsys, monkeypatch):
    asked = []
    monkeypatch.setattr("rlhf_dialog.data.hub.hub_reachable", lambda: bool(asked.append("hub")))
    folder = run()
    change(folder / "checkpoints/iter_000002/config.yaml", **keys)
    assert exported(folder, "out") == 2
    refused(capsys, found, "--trust_config")
    assert asked == []
    assert exported(folder, "out", "--trust_config") == 2
    refused(capsys, "the Hub cannot be reached")
    assert asked


def test_code_of_a_model_is_run_for_a_trusted_configuration_alone(run, capsys):
    settings = json.loads((Path("model") / "config.json").read_text())
    code = {"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.EvilModel"}
    (Path("model") / "config.json").write_text(json.dumps(settings | {"model_type": "evil", "auto_map": code}))
    (Path("model") / "evil.py").write_text("import pathlib\npathlib.Path('ran').touch()\nraise ValueError('it ran')\n")
    folder = run()
    change(folder / "checkpoints/iter_000002/config.yaml", trust_remote_code=True)
    assert exported(folder, "out") == 2
    refused(capsys, "trust_remote_code: allows code or pickles", "--trust_config")
    assert not Path("ran").exists()
    assert exported(folder, "out", "--trust_config") == 2
    refused(capsys, "code from these sources may run")
    assert Path("ran").exists()


def test_pickled_weights_are_read_for_a_trusted_configuration_alone(run, capsys):
    torch.save(tiny.gpt2().state_dict(), "model/pytorch_model.bin")
    Path("model/model.safetensors").unlink()
    folder = run()
    change(folder / "checkpoints/iter_000002/config.yaml", allow_pickle_weights=True)
    assert exported(folder, "out") == 2
    refused(capsys, "allow_pickle_weights: allows code or pickles", "--trust_config")
    assert exported(folder, "out", "--trust_config") == 0
