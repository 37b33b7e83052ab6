"""Checkpoints: a resumed run gives the same numbers bit for bit, and a broken write leaves the old one whole."""

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from processes import output_of
from safetensors import SafetensorError
from safetensors.torch import load_file
from tiny import byte_tokenizer, gpt2, llama
from trainers import Places, make_trainer, parameters
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf_dialog.config.loading import load_config
from rlhf_dialog.errors import UserError
from rlhf_dialog.models.loading import Policy
from rlhf_dialog.runs import checkpoint
from rlhf_dialog.runs.checkpoint import (
    load_checkpoint,
    load_weights,
    newest_checkpoint,
    save_agent,
    save_checkpoint,
)

pytestmark = pytest.mark.thorough

CPU = torch.device("cpu")
KINDS = {
    "shared trunk": {},
    "separate critic": {"use_share_model": False},
    "no value normalisation": {"use_valuenorm": False},
    "filtered, decay": {"top_k": 30, "use_linear_lr_decay": True, "max_iterations": 9, "weight_decay": 0.01},
    "without critic": {"advantage_estimator": "rloo", "num_responses_per_prompt": 3},
}


class Moody(Places):
    """A reward that draws from all three random generators."""

    def __call__(self, dialogues):
        drawn = random.random() + np.random.random() + torch.rand(()).item()
        return [value + drawn for value in super().__call__(dialogues)]


def build(kind):
    random.seed(0)
    np.random.seed(0)
    return make_trainer(Moody(), lr=3e-3, **KINDS[kind])


def modules(trainer):
    found = {"policy": trainer.models.policy, "critic": trainer.models.critic}
    return {name: module for name, module in found.items() if module is not None}


def save(trainer, folder):
    return save_checkpoint(folder, trainer.config, trainer.state_dict(), modules(trainer), trainer.optimizers)


def resume(kind, folder):
    """New objects with everything from the checkpoint."""
    trainer = build(kind)
    torch.manual_seed(999)  # whatever the new process has drawn before
    trainer.load_state_dict(load_checkpoint(folder, modules(trainer), trainer.optimizers, CPU))
    return trainer


def numbers(metrics):
    return {key: value for key, value in metrics.items() if key != "FPS" and not key.startswith("time/")}


def steps(trainer, count):
    return [numbers(trainer.step()) for _ in range(count)]


# -- resume


@pytest.mark.parametrize("kind", KINDS)
def test_resume_gives_the_same_numbers_bit_for_bit(tmp_path, kind):
    whole = build(kind)
    expected = steps(whole, 4)
    first = build(kind)
    assert steps(first, 2) == expected[:2]
    save(first, tmp_path)
    second = resume(kind, tmp_path)
    assert second.state_dict() == first.state_dict()
    assert steps(second, 2) == expected[2:]
    for name, module in modules(whole).items():
        ours = parameters(modules(second)[name])
        assert all(torch.equal(value, ours[key]) for key, value in parameters(module).items())
    assert len({metrics["objective/score"] for metrics in expected}) == 4


def test_saving_does_not_disturb_the_run(tmp_path):
    kind = "shared trunk"
    quiet, saved = steps(build(kind), 3), []
    trainer = build(kind)
    for _ in range(3):
        saved += steps(trainer, 1)
        save(trainer, tmp_path)
    assert saved == quiet


@pytest.mark.ci
def test_resume_in_another_process(tmp_path):
    kind = "separate critic"
    expected = steps(build(kind), 4)
    trainer = build(kind)
    steps(trainer, 2)
    save(trainer, tmp_path)
    code = (
        "import offline, json, sys, pathlib, test_checkpoint as t\n"
        f"trainer = t.resume({kind!r}, pathlib.Path({str(tmp_path)!r}))\n"
        "json.dump(t.steps(trainer, 2), sys.stdout)"
    )
    assert json.loads(output_of("-c", code, cwd=Path(__file__).parent)) == expected[2:]


# -- what is written


def test_files_of_a_checkpoint(tmp_path):
    trainer = build("separate critic")
    trainer.step()
    assert save(trainer, tmp_path / "checkpoints") == tmp_path / "checkpoints/iter_000001"
    assert (tmp_path / "checkpoints/latest").read_text() == "iter_000001"
    found = {str(path.relative_to(tmp_path / "checkpoints")) for path in tmp_path.rglob("*") if path.is_file()}
    names = ["config.yaml", "trainer.json", "random.safetensors"]
    names += [f"{m}{kind}.safetensors" for m in ("policy", "critic") for kind in ("", "_optimizer")]
    assert found == {"latest", *(f"iter_000001/{name}" for name in names)}
    state = json.loads((tmp_path / "checkpoints/iter_000001/trainer.json").read_text())
    assert state["format_version"] == 1
    assert state["iteration"] == 1
    assert load_config(tmp_path / "checkpoints/iter_000001/config.yaml").model_dump() == {
        **trainer.config.model_dump(),
        "experiment_name": "config",
    }
    assert yaml.safe_load((tmp_path / "checkpoints/iter_000001/config.yaml").read_text())["lr"] == 3e-3


def test_optimizer_state_comes_back(tmp_path):
    trainer = build("shared trunk")
    trainer.step()
    save(trainer, tmp_path)
    other = build("shared trunk")
    load_checkpoint(tmp_path, modules(other), other.optimizers, CPU)
    ours, theirs = (t.optimizers["policy"].state_dict() for t in (trainer, other))
    assert ours["param_groups"][0]["params"] == theirs["param_groups"][0]["params"]
    assert ours["state"].keys() == theirs["state"].keys()
    for key, slots in ours["state"].items():
        assert set(slots) == {"step", "exp_avg", "exp_avg_sq"}
        assert all(torch.equal(value, theirs["state"][key][name]) for name, value in slots.items())


@pytest.mark.parametrize("keep", [1, 2])
def test_keep_checkpoints(tmp_path, keep):
    trainer = make_trainer(keep_checkpoints=keep, ppo_epoch=1)
    for iteration in (1, 2, 10):
        trainer.iteration = iteration
        save(trainer, tmp_path)
        assert (tmp_path / "latest").read_text() == f"iter_{iteration:06d}"
    kept = {f"iter_{i:06d}" for i in (1, 2, 10)[-keep:]}
    assert {path.name for path in tmp_path.iterdir()} == {"latest", *kept}


@pytest.mark.parametrize(("keep", "kept"), [(1, (2, 10)), (2, (2, 4, 10)), (4, (1, 2, 4, 10))])
def test_the_best_checkpoint_is_kept_beside_the_newest(tmp_path, keep, kept):
    trainer = make_trainer(keep_checkpoints=keep, ppo_epoch=1)
    for iteration in (1, 2, 4, 10):
        trainer.iteration = iteration
        state = trainer.state_dict()
        best = iteration <= 2
        save_checkpoint(tmp_path, trainer.config, state, modules(trainer), trainer.optimizers, best)
        assert (tmp_path / "best").read_text() == f"iter_{min(iteration, 2):06d}"
    assert {path.name for path in tmp_path.iterdir()} == {"latest", "best", *(f"iter_{i:06d}" for i in kept)}


def test_housekeeping_leaves_later_checkpoints_and_the_new_one_alone(tmp_path):
    trainer = make_trainer(keep_checkpoints=2, ppo_epoch=1)
    for name in ("iter_000010", "iter_000012", "iter_000014", "iter_000001.copy"):
        (tmp_path / name).mkdir()
    for iteration in (1, 2, 3, 4):
        trainer.iteration = iteration
        save(trainer, tmp_path)
    kept = {"iter_000003", "iter_000004", "iter_000010", "iter_000012", "iter_000014", "iter_000001.copy"}
    assert {path.name for path in tmp_path.iterdir()} == {"latest", *kept}


def test_a_checkpoint_that_has_the_name_of_another_iteration_is_refused(tmp_path):
    (save(build("shared trunk"), tmp_path)).rename(tmp_path / "iter_000004")
    (tmp_path / "latest").write_text("iter_000004")
    with pytest.raises(UserError, match="iter_000004: contains the state of iteration 0; rename it to iter_000000"):
        resume("shared trunk", tmp_path)


def test_the_same_iteration_is_saved_again(tmp_path):
    trainer = build("shared trunk")
    save(trainer, tmp_path)
    with torch.no_grad():
        trainer.models.policy.value_head.bias.fill_(5.0)
    save(trainer, tmp_path)
    assert load_file(tmp_path / "iter_000000/policy.safetensors")["value_head.bias"].tolist() == [5.0]
    assert {path.name for path in tmp_path.iterdir()} == {"latest", "iter_000000"}


# -- broken writes


@pytest.mark.parametrize("error", [OSError("No space left on device"), SafetensorError("I/O error")])
@pytest.mark.parametrize("name", ["save_file", "save_module", "write_json"])
def test_an_interrupted_write_leaves_the_old_checkpoint_whole(tmp_path, monkeypatch, name, error):
    trainer = build("shared trunk")
    steps(trainer, 1)
    save(trainer, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    steps(trainer, 1)

    def full(*_args, **_options):
        raise error

    monkeypatch.setattr(checkpoint, name, full)
    with pytest.raises(UserError, match=r"iter_000002: cannot be written: "):
        save(trainer, tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert {path.name for path in tmp_path.iterdir()} == {"latest", "iter_000001"}
    assert resume("shared trunk", tmp_path).iteration == 1


# -- what is refused


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        save(build("shared trunk"), tmp_path / "file")


def test_no_checkpoint(tmp_path):
    with pytest.raises(UserError, match="contains no checkpoint to resume from"):
        resume("shared trunk", tmp_path)


def test_unknown_format_version(tmp_path):
    trainer = build("shared trunk")
    path = save(trainer, tmp_path) / "trainer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 2}))
    with pytest.raises(UserError, match="has format version 2, but this program reads 1"):
        resume("shared trunk", tmp_path)


def test_a_checkpoint_of_another_kind_of_run(tmp_path):
    save(build("separate critic"), tmp_path)
    with pytest.raises(UserError, match=r"has optimizers of \['critic', 'policy'\], but this run has \['policy'\]"):
        resume("shared trunk", tmp_path)
    save(build("without critic"), tmp_path)
    with pytest.raises(UserError, match="does not fit this run"):
        resume("shared trunk", tmp_path)  # no value head in it


@pytest.mark.parametrize(
    "name", ["trainer.json", "policy.safetensors", "policy_optimizer.safetensors", "random.safetensors"]
)
@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_damaged_checkpoint(tmp_path, name, damage):
    trainer = build("shared trunk")
    steps(trainer, 1)
    path = save(trainer, tmp_path) / name
    path.unlink() if damage == "missing" else path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match="iter_000001"):
        resume("shared trunk", tmp_path)


@pytest.mark.parametrize("name", ["policy.safetensors", "policy_optimizer.safetensors", "random.safetensors"])
def test_a_damaged_file_of_the_right_size_has_a_way_back(tmp_path, name):
    trainer = build("shared trunk")
    for _ in range(2):
        steps(trainer, 1)
        path = save(trainer, tmp_path) / name
    data = bytearray(path.read_bytes())
    data[8] ^= 1  # the brace of the header
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"iter_000002: is damaged .*SafetensorError.*--resume_from iter_000001$"):
        resume("shared trunk", tmp_path)


# -- the agent


@pytest.mark.parametrize("make", [None, llama])
def test_agent_folder_is_a_plain_causal_lm(tmp_path, make):
    trainer = make_trainer(top_k=7, temperature=0.6, max_prompt_length=99)
    policy = trainer.models.policy if make is None else Policy(make()).eval()
    if make is None:
        trainer.step()
    save_agent(tmp_path / "agent", policy, trainer.models.tokenizer, trainer.config)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "agent").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "agent")
    text = "Where is the ladder ? <EOU>"
    assert tokenizer(text)["input_ids"] == byte_tokenizer()(text)["input_ids"]
    ids = torch.tensor([tokenizer(text)["input_ids"]])
    with torch.no_grad():
        assert torch.equal(plain(ids).logits, policy.lm(ids).logits)
    settings = json.loads((tmp_path / "agent/rlhf_dialog.json").read_text())
    assert settings == {
        "format_version": 1,
        "turn_separator": "<EOU>",
        "context_size": 5,
        "max_prompt_length": 99,
        "max_new_tokens": 5,
        "temperature": 0.6,
        "top_k": 7,
        "top_p": 1.0,
    }
    head = tmp_path / "agent/value_head.safetensors"
    assert head.exists() == (make is None)
    if make is None:
        assert torch.equal(load_file(head)["weight"], policy.value_head.weight)
        assert policy.value_head.weight.any()
    assert not list((tmp_path / "agent").glob("*.bin"))
    assert {path.name for path in tmp_path.iterdir()} == {"agent"}


def test_agent_folder_survives_a_failed_write(tmp_path, monkeypatch):
    trainer = make_trainer()
    folder = tmp_path / "agent"
    save_agent(folder, trainer.models.policy, trainer.models.tokenizer, trainer.config)
    before = {path: path.read_bytes() for path in folder.rglob("*")}
    with torch.no_grad():
        trainer.models.policy.value_head.bias.fill_(math.pi)

    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(checkpoint, "write_json", full)
    with pytest.raises(UserError, match="No space left on device"):
        save_agent(folder, trainer.models.policy, trainer.models.tokenizer, trainer.config)
    assert {path: path.read_bytes() for path in folder.rglob("*")} == before
    assert [path.name for path in tmp_path.iterdir()] == ["agent"]


def test_a_latest_pointer_that_cannot_be_written(tmp_path):
    trainer = build("shared trunk")
    (tmp_path / "latest").mkdir()
    with pytest.raises(UserError, match="cannot be written"):
        save(trainer, tmp_path)


def test_resume_with_the_other_value_normalisation():
    trainer = build("shared trunk")
    state = trainer.state_dict()
    state["value_normalizer"] = (
        None if state["value_normalizer"] else {"mean_sum": 0.0, "square_sum": 0.0, "weight": 0.0}
    )
    with pytest.raises(UserError, match="use_valuenorm"):
        trainer.load_state_dict(state)


# -- names that lead elsewhere, and kills in the moment of a swap


@pytest.mark.parametrize("pointer", ["latest", "best"])
@pytest.mark.parametrize(
    "text", ["../elsewhere", "/etc", "iter_000001/..", "..", "", "iter_000001\n../x", "x" * 9999, "\0"]
)
def test_a_pointer_that_leaves_the_folder_is_refused(tmp_path, pointer, text):
    trainer = build("shared trunk")
    save_checkpoint(tmp_path, trainer.config, trainer.state_dict(), modules(trainer), trainer.optimizers, best=True)
    (tmp_path / pointer).write_text(text)
    read = newest_checkpoint if pointer == "latest" else checkpoint.best_checkpoint
    with pytest.raises(
        UserError, match=rf"{pointer}: names .*which is not a checkpoint of this folder; write the name"
    ):
        read(tmp_path)


def test_a_pointer_may_not_be_a_link(tmp_path):
    save(build("shared trunk"), tmp_path)
    (tmp_path / "name").write_text("iter_000000")
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").symlink_to("name")
    with pytest.raises(UserError, match="latest: is a link"):
        newest_checkpoint(tmp_path)
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").symlink_to("absent")
    with pytest.raises(UserError, match="latest: is a link"):
        newest_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["", "policy.safetensors", "trainer.json", "random.safetensors"])
def test_a_checkpoint_of_links_is_refused(tmp_path, name):
    trainer = build("shared trunk")
    path = save(trainer, tmp_path / "checkpoints") / name
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"is a link to .*elsewhere, but a checkpoint must contain its files"):
        resume("shared trunk", tmp_path / "checkpoints")


def test_a_checkpoint_without_its_pointer_is_found(tmp_path):
    trainer = build("shared trunk")
    steps(trainer, 1)
    save(trainer, tmp_path)
    (tmp_path / "latest").unlink()  # the kill came before it was written
    assert resume("shared trunk", tmp_path).iteration == 1


def killed_before_its_pointer(folder, monkeypatch):
    """Iteration 1 is saved, and iteration 2 but for `latest`."""
    trainer = build("shared trunk")
    steps(trainer, 1)
    save(trainer, folder)
    steps(trainer, 1)

    def kill(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "replace_text", kill)
        with pytest.raises(KeyboardInterrupt):
            save(trainer, folder)
    assert (folder / "latest").read_text() == "iter_000001"
    assert (folder / "iter_000002").is_dir()


def test_a_save_that_was_killed_before_its_pointer_is_finished(tmp_path, monkeypatch):
    killed_before_its_pointer(tmp_path, monkeypatch)
    checkpoint.finish_saving(tmp_path)
    assert (tmp_path / "latest").read_text() == "iter_000002"
    assert {path.name for path in tmp_path.iterdir()} == {"latest", "iter_000001", "iter_000002"}
    assert not list(tmp_path.rglob("unannounced"))
    assert resume("shared trunk", tmp_path).iteration == 2


def test_a_pointer_that_was_changed_since_the_kill_stays(tmp_path, monkeypatch):
    killed_before_its_pointer(tmp_path, monkeypatch)
    (tmp_path / "iter_000001").rename(tmp_path / "iter_000000")
    (tmp_path / "latest").write_text("iter_000000")
    checkpoint.finish_saving(tmp_path)
    assert (tmp_path / "latest").read_text() == "iter_000000"
    assert not list(tmp_path.rglob("unannounced"))


@pytest.mark.parametrize("state", [[], {}, {"format_version": 1}, {"format_version": 1, "optimizers": 3}, None, 7])
def test_json_that_is_no_state_is_the_users_error(tmp_path, state):
    path = save(build("shared trunk"), tmp_path) / "trainer.json"
    path.write_text(json.dumps(state))
    with pytest.raises(UserError, match="iter_000000: is damaged or does not fit this run"):
        resume("shared trunk", tmp_path)


def test_a_resumed_optimizer_has_the_epsilon_and_the_decay_of_its_own_run(tmp_path):
    save(build("shared trunk"), tmp_path)
    other = make_trainer(Moody(), opti_eps=1e-3, weight_decay=0.5)
    load_checkpoint(tmp_path, modules(other), other.optimizers, CPU)
    group = other.optimizers["policy"].param_groups[0]
    assert (group["eps"], group["weight_decay"]) == (1e-3, 0.5)


# -- weights alone


def test_weights_alone(tmp_path):
    first = build("separate critic")
    steps(first, 1)
    source = save(first, tmp_path)
    same, shared, bare = build("separate critic"), build("shared trunk"), build("without critic")
    assert load_weights(source, modules(same), CPU) == []
    for name, module in modules(same).items():
        ours = parameters(modules(first)[name])
        assert all(torch.equal(value, ours[key]) for key, value in parameters(module).items())
    assert same.optimizers["policy"].state_dict()["state"] == {}
    assert load_weights(source, modules(shared), CPU) == ["policy's value head"]
    assert load_weights(source, modules(bare), CPU) == []
    for trainer in (shared, bare):
        ours = parameters(first.models.policy.lm)
        assert all(torch.equal(value, ours[key]) for key, value in parameters(trainer.models.policy.lm).items())
    assert load_weights(save(shared, tmp_path / "shared"), modules(build("separate critic")), CPU) == ["critic"]


def test_weights_of_another_model_are_refused(tmp_path):
    source = save(build("shared trunk"), tmp_path)
    for other in (llama(), gpt2(n_embd=64), gpt2(n_layer=3)):
        with pytest.raises(UserError, match="iter_000000: is damaged or does not fit this run"):
            load_weights(source, {"policy": Policy(other)}, CPU)
