"""What a model folder, a tokenizer or an environment variable must never do; docs/SECURITY.md says why."""

import json
import logging
import os
import pickle
import textwrap
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rlhf_dialog import BaseReward, ChatAgent, PPOAgent, RewardFactory, UserError, main
from rlhf_dialog.config import loading
from rlhf_dialog.config.schema import Config
from rlhf_dialog.data import hub
from rlhf_dialog.models.loading import load_causal_lm, load_models, read_tokenizer
from rlhf_dialog.rewards.intent import Intent
from tests.parts import tiny
from tests.parts.poisoned import MARKER, Bomb, edit, with_code, write_run
from tests.parts.processes import ROOT, environment, output_of

SECRETS = ("WANDB_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY")


def archive(path: Path, bomb: Bomb) -> None:
    torch.save({"transformer.wte.weight": torch.zeros(2), "x": bomb}, path)


def test_the_bomb_goes_off_when_nothing_is_done(tmp_path, went_off):
    archive(tmp_path / "x.bin", Bomb(went_off))
    torch.load(tmp_path / "x.bin", weights_only=False)
    assert went_off.exists()


# pickles


@pytest.mark.parametrize("write", [lambda path, bomb: path.write_bytes(pickle.dumps(bomb)), archive])
@pytest.mark.parametrize("allow", [False, True])
def test_a_poisoned_weight_file_is_refused_and_not_run(folder, went_off, write, allow):
    (folder / "model.safetensors").unlink()
    write(folder / "pytorch_model.bin", Bomb(went_off))
    before, wanted = torch.load, "something other than tensors" if allow else "set allow_pickle_weights: true"
    with pytest.raises(UserError, match=f"model_path: '{folder}'.*{wanted}"):
        load_causal_lm(str(folder), "model_path", allow_pickle_weights=allow)
    with pytest.raises(UserError, match=r"reward_class\.args\.intent_model"):
        Intent(str(folder), allow_pickle_weights=allow)
    assert not went_off.exists()
    assert torch.load is before


def test_honest_pickled_weights_are_read_when_allowed(folder):
    expected = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    torch.save(expected, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    found = load_causal_lm(str(folder), "model_path", allow_pickle_weights=True).state_dict()
    assert all(torch.equal(expected[name], tensor) for name, tensor in found.items())


def test_pickles_that_lie_beside_the_weights_or_an_adapter_are_not_read(folder, went_off):
    names = ("pytorch_model.bin", "optimizer.pt", "scheduler.pt", "training_args.bin", "rng_state.pth", "tokenizer.pkl")
    for name in (*names, "adapter_model.bin"):
        archive(folder / name, Bomb(went_off))
    for allow in (False, True):
        load_causal_lm(str(folder), "model_path", allow_pickle_weights=allow)
        read_tokenizer(str(folder), "model_path")
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "someone/else"}', encoding="utf-8")
    for allow in (False, True):
        with pytest.raises(UserError, match="is an adapter"):
            load_causal_lm(str(folder), "model_path", allow_pickle_weights=allow)
    assert not went_off.exists()


def index_of(folder: Path, name: str) -> None:
    """Let an index of safetensors name another file for every weight."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, name)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


@pytest.mark.parametrize("name", ["weights.bin", "../weights.bin", "{parent}/weights.bin"])
def test_an_index_of_safetensors_cannot_name_a_pickle(folder, went_off, name):
    for place in (folder, folder.parent):
        archive(place / "weights.bin", Bomb(went_off))
    index_of(folder, name.format(parent=folder.parent))
    for allow in (False, True):
        with pytest.raises(UserError, match=r"model_path|weights\.bin: leads out of"):
            load_causal_lm(str(folder), "model_path", allow_pickle_weights=allow)
    assert not went_off.exists()


@pytest.mark.parametrize("by", ["index", "config"])
def test_an_honest_pickle_that_a_json_file_names_is_not_read(folder, by):
    name = "adapter_model.bin"  # which transformers lets a config.json name
    torch.save(load_file(folder / "model.safetensors"), folder / name)
    if by == "index":
        index_of(folder, name)
    else:
        edit(folder / "config.json", transformers_weights=name)
    with pytest.raises(UserError, match="names a pickled weight file"):
        load_causal_lm(str(folder), "model_path")


@pytest.mark.parametrize(
    ("file", "keys"),
    [
        ("config.json", {"transformers_weights": "../other/model.safetensors"}),
        ("model.safetensors.index.json", {"weight_map": {"transformer.wte.weight": "../other/model.safetensors"}}),
        ("tokenizer_config.json", {"fast_tokenizer_files": ["../other/tokenizer.4.0.0.json"]}),
    ],
)
def test_no_file_names_one_of_another_folder(folder, file, keys):
    (folder / file).write_text(json.dumps(keys | {"model_type": "gpt2"}), encoding="utf-8")
    load = read_tokenizer if file.startswith("tokenizer") else load_causal_lm
    with pytest.raises(UserError, match=r"\.\./other/.*: leads out of"):
        load(str(folder), "model_path")


# code of a model folder


def test_code_of_a_folder_is_not_run_unless_the_configuration_says_so(folder, went_off):
    with_code(folder, went_off)
    for load in (load_causal_lm, read_tokenizer):
        with pytest.raises(UserError, match=r"its own code; set trust_remote_code: true"):
            load(str(folder), "model_path")
    with pytest.raises(UserError, match="its own code; allow it with --trust_remote_code if you trust it"):
        ChatAgent.load(folder)
    with pytest.raises(UserError):
        Intent(str(folder))
    assert not went_off.exists()
    with pytest.raises((UserError, AttributeError)):
        load_causal_lm(str(folder), "model_path", trust_remote_code=True)
    assert went_off.exists()


@pytest.mark.parametrize(
    "values",
    [
        {"_attn_implementation": "paged|someone/kernel@main:forward"},
        {"text_config": {"_attn_implementation_internal": "someone/kernel"}},
        {"layers": [{"attn_implementation": "someone/kernel"}]},
        {"attn_implementation": {"text": "someone/kernel"}},
        {"attn_implementation": "eager", "name": "someone/model"},
    ],
)
def test_a_config_cannot_fetch_compiled_code_but_names_what_transformers_has(folder, values):
    edit(folder / "config.json", **values)
    refused = pytest.raises(UserError, match=r"asks to run code from '.*someone/kernel")
    with nullcontext() if "name" in values else refused:
        load_causal_lm(str(folder), "model_path")


def ppo_config(folder: Path, **values) -> Config:
    args = {"env": {"args": {"data_path": "d", "tokenizer_path": str(folder)}}, "reward_class": {"id": "LengthMatch"}}
    return Config(model_path=str(folder), **(args | values))


@pytest.mark.slow
def test_trusted_code_is_announced_once_with_every_place(folder, tmp_path, caplog):
    caplog.set_level(logging.WARNING, logger="rlhf_dialog")
    data = {"data_path": str(tiny.write_data(tmp_path / "data")), "tokenizer_path": str(folder)}
    for trust in (False, True):
        PPOAgent(ppo_config(folder, env={"args": data}, ref_model=str(folder), trust_remote_code=trust)).build()
        found = [record.getMessage() for record in caplog.records if "trust_remote_code: true" in record.getMessage()]
        assert len(found) == trust
    assert all(f"{key} '{folder}'" in found[0] for key in ("model_path", "ref_model", "env.args.tokenizer_path"))


# names


@pytest.mark.parametrize("name", ["../../evil", ".."])
def test_a_chat_template_cannot_leave_its_folder(folder, name):
    templates = [{"name": "default", "template": tiny.CHATML}, {"name": name, "template": "x"}]
    edit(folder / "tokenizer_config.json", chat_template=templates)
    with pytest.raises(UserError, match="chat template named"):
        read_tokenizer(str(folder), "model_path")


def test_links_of_the_hubs_cache_are_read_and_never_written_through(folder, tmp_path):
    linked = tmp_path / "models--ada--model" / "snapshots" / "1f2e"
    linked.mkdir(parents=True)
    folder = folder.rename(tmp_path / "models--ada--model" / "blobs")
    before = {}
    for path in folder.iterdir():
        (linked / path.name).symlink_to(Path("../../blobs") / path.name)
        before[path.name] = path.read_bytes()
    config = ppo_config(linked)
    models = load_models(config, torch.device("cpu"))
    models.policy.lm.save_pretrained(tmp_path / "saved")
    models.tokenizer.save_pretrained(tmp_path / "saved")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert not any(path.is_symlink() for path in (tmp_path / "saved").iterdir())


# secrets


@pytest.mark.parametrize("key", ["wandb_api_key", "env.args.password"])
def test_a_secret_in_the_configuration_is_refused_without_being_shown(folder, key):
    raw = {"model_path": str(folder)}
    loading.override(raw, key, MARKER)
    path = folder / "ppo.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    with pytest.raises(UserError) as error:
        loading.load_config(path)
    assert f"{key}: unknown key; set secrets in the environment" in str(error.value)
    assert MARKER not in str(error.value)


def holding(root: Path, text: str) -> list[str]:
    """The files below `root` that hold the text, or have it in their name."""
    files = [path for path in root.rglob("*") if path.is_file()]
    assert files
    return [str(path) for path in files if text.encode() in path.read_bytes() or text in str(path)]


class Raises(BaseReward):
    """Holds a secret when it breaks."""

    def __call__(self, dialogues):
        key = os.environ["OPENAI_API_KEY"]
        raise RuntimeError("needs the key of the environment" if key else "")


@pytest.mark.slow
def test_secrets_of_the_environment_are_in_no_file_of_a_run(folder, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(RewardFactory, "classes", {**RewardFactory.classes, "Raises": Raises})
    for name in SECRETS:
        monkeypatch.setenv(name, MARKER)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.chdir(tmp_path)
    path = write_run(tmp_path, folder, use_wandb=True, use_tensorboard=True, eval_interval=1, eval_episodes=2)
    assert main(["--config", str(path)]) == 0
    assert {path.name for path in (tmp_path / "run_results/ppo").iterdir()} >= {"wandb", "tensorboard", "best_agent"}
    assert main(["--config", str(path), "--experiment_name", "bad", "--reward_class", "{id: Raises}"]) == 2
    assert "needs the key of the environment" in (tmp_path / "run_results/bad/error.log").read_text(encoding="utf-8")
    assert {Path(path).name for path in holding(tmp_path, "LengthMatch")} >= {"ppo.yaml", "config.yaml"}
    assert holding(tmp_path, MARKER) == []
    captured = capfd.readouterr()
    assert MARKER not in captured.out + captured.err


def test_settings_that_are_a_link_to_a_secret_do_not_show_it(folder, tmp_path):
    (tmp_path / "credentials.json").write_text(json.dumps({"token": MARKER, "temperature": MARKER}), encoding="utf-8")
    (folder / "rlhf_dialog.json").symlink_to(tmp_path / "credentials.json")
    with pytest.raises(UserError) as error:
        ChatAgent.load(folder)
    assert "rlhf_dialog.json" in str(error.value)
    assert MARKER not in str(error.value)


# connections


PROGRAM = """
import importlib.util, os, runpy, socket, sys
asked = []
def refuse(*words):
    if not (words and isinstance(words[0], socket.socket) and words[0].family == socket.AF_UNIX):
        asked.append(repr(words[-1]))
    raise OSError("no network")
socket.socket.connect = socket.socket.connect_ex = socket.socket.sendto = refuse
socket.getaddrinfo = socket.gethostbyname = refuse
def script(path, *words):
    sys.argv = [path, *words]
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        assert end.code in (0, None), (path, end.code)
ROOT, run = sys.argv[1], "run_results/ppo"
script(ROOT + "/train_ppo.py", "--config", "ppo.yaml")
script(ROOT + "/train_ppo.py", "--config", "ppo.yaml", "--resume", "--max_iterations", "2")
script(ROOT + "/scripts/evaluate.py", "--agent", run + "/agent", "--output", "evaluation.json", "--max_prompts", "4")
sys.stdin = open("said.txt")
script(ROOT + "/chat.py", "--agent", run + "/agent")
script(ROOT + "/scripts/train_sft.py", "--data_path", "data", "--output", "sft", "--max_steps", "2", "--n_layer", "1",
       "--n_embd", "32", "--n_head", "2", "--vocab_size", "300", "--device", "cpu", "--evals", "1")
print("ASKED", sorted(set(asked)))
"""


@pytest.mark.slow
def test_nothing_is_sent_or_asked_for_when_everything_is_local(folder, tmp_path):
    """Training, resuming, evaluating, chatting and supervised training, with neither offline mode nor any opt-out set."""
    write_run(tmp_path, folder, eval_interval=1, eval_episodes=2)
    (tmp_path / "said.txt").write_text("Hello\nquit\n", encoding="utf-8")
    outs = ("OFFLINE", "TELEMETRY", "DO_NOT_TRACK", "WANDB_", "CONVERSION")
    removed = {name: None for name in os.environ if name == "CI" or any(out in name for out in outs)}
    said = output_of("-c", textwrap.dedent(PROGRAM), ROOT, cwd=tmp_path, env=environment(**removed))
    assert said.splitlines()[-1] == "ASKED []", said


def test_the_opt_outs_are_set():
    from huggingface_hub import constants

    assert hub.constants is constants
    assert constants.HF_HUB_DISABLE_TELEMETRY
    assert os.environ["DISABLE_SAFETENSORS_CONVERSION"] == "1"
