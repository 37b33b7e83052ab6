"""A run on the disk: how it begins, is saved, and goes on in its folder."""

import json
import shutil
import sys
from types import SimpleNamespace

import pytest
import torch
import yaml

from rlhf_dialog.config.registry import AdvantageFactory, LossFactory
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import UserError
from rlhf_dialog.runs import checkpointing, identity, verification
from rlhf_dialog.runs.checkpointing import RunCheckpointer
from rlhf_dialog.runs.folder import Start
from rlhf_dialog.runs.services.base import PPORun, Service
from rlhf_dialog.runs.settling import settle_config
from tests.parts.processes import load_file
from tests.parts.ranks import in_ranks
from tests.parts.saved_models import save
from tests.parts.tiny import gpt2
from tests.parts.trainers import make_trainer, parameters, settings


def state_in(folder, **keys) -> RunCheckpointer:
    trainer = make_trainer(**{"agent_dtype": "float32", **keys})  # the model has no folder to compare it with
    made_with = identity.identity_of(trainer.config, trainer.models, trainer.prompts, trainer.scorer.reward)
    return RunCheckpointer(PPORun(trainer.config, folder, trainer), (), made_with)


def trained_in(folder, steps: int) -> RunCheckpointer:
    folder.mkdir(exist_ok=True)
    state = state_in(folder)
    state.begin(Start())
    for _ in range(steps):
        state.trainer.step()
    state.save()
    return state


@pytest.mark.parametrize(
    ("seconds", "keys", "saved"),
    [
        (0.01, {}, [1, 5, 10, 15, 20, 25, 30]),
        (0.3, {}, [1, 10, 20, 30]),  # the first ends at 1.3 and takes 6 seconds: not at 5.3, but at 10.3
        (1.0, {}, [1, 25]),  # 20 seconds, exactly: the first ends at 2, iteration 20 at 21
        (60.0, {}, [1]),
        (60.0, {"save_interval": 10}, [10, 20, 30]),  # who names a number gets it
    ],
)
def test_by_default_saving_takes_at_most_a_twentieth_of_the_time(tmp_path, monkeypatch, seconds, keys, saved):
    """Iterations of a second, and saves of `seconds`."""
    clock, found, run = [0.0], [], state_in(tmp_path, **keys)
    monkeypatch.setattr(checkpointing, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def write(random_of_ranks, staged) -> None:
        clock[0] += seconds
        found.append(run.trainer.iteration)

    run._write = write
    for run.trainer.iteration in range(1, 31):
        clock[0] += 1
        if run.is_due():
            run.save()
    assert found == saved


def clock_of(world: World, folder) -> list[int]:
    run = state_in(folder, world=world)
    run._write, saved = lambda *_: None, []
    for run.trainer.iteration in range(1, 13):
        run.next_save = float("inf") if world.rank else 0.0
        if run.is_due():
            run.save()
            saved.append(run.trainer.iteration)
    return saved


@pytest.mark.multiprocess
def test_rank_0_decides_when_all_save(tmp_path):
    assert in_ranks(2, clock_of, tmp_path) == [[1, 5, 10], [1, 5, 10]]


def test_a_run_that_begins_writes_its_configuration_alone(tmp_path):
    state_in(tmp_path, lr=3e-4).begin(Start())
    assert {path.name for path in tmp_path.iterdir()} == {"config.yaml", "local_names.json"}
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["lr"] == 3e-4


def test_a_saved_run_goes_on_with_its_weights_and_counters(tmp_path):
    first = trained_in(tmp_path, 2)
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps({"iteration": i}) + "\n" for i in (1, 2, 3)))
    other = state_in(tmp_path)
    other.begin(Start(resume=True))
    assert (other.trainer.iteration, other.trainer.episodes) == (2, 12)
    weights = parameters(first.trainer.models.policy)
    assert all(torch.equal(p, weights[name]) for name, p in parameters(other.trainer.models.policy).items())
    assert [json.loads(line)["iteration"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [1, 2]
    assert not other.trainer.starts_from_reference


def test_a_run_that_is_resumed_keeps_the_precision_in_which_it_began(tmp_path):
    trained_in(tmp_path, 1)  # with `use_amp: false`
    open_keys = settings(model_path=save(tmp_path / "model", gpt2()))
    config = settle_config(open_keys, World(), tmp_path / "checkpoints")
    assert (config.use_amp, config.precision) == (False, "auto")
    assert settle_config(open_keys, World(), tmp_path / "nowhere") == settle_config(open_keys, World())


def test_another_precision_is_reported(caplog):
    state = make_trainer().state_dict()
    for same in (state, {key: value for key, value in state.items() if key != "precision"}):  # the second: an older one
        make_trainer().load_state_dict(same)
    assert not caplog.records
    make_trainer(use_amp=True).load_state_dict(state)
    assert "fp32 and goes on in bf16" in caplog.text


def test_a_run_that_ended_before_its_first_checkpoint_begins_again(tmp_path, caplog):
    caplog.set_level("INFO", logger="rlhf_dialog")
    for name in ("metrics.jsonl", "ledger.jsonl"):
        (tmp_path / name).write_text('{"iteration": 1}\n{"iteration": 2, "obj')
    state = state_in(tmp_path)
    state.begin(Start(resume=True))
    assert state.trainer.iteration == 0
    assert (tmp_path / "metrics.jsonl").read_text() == (tmp_path / "ledger.jsonl").read_text() == ""
    assert "has no checkpoint yet; the run starts from the beginning" in caplog.text


def test_another_run_is_not_continued(tmp_path):
    trained_in(tmp_path, 1)
    other = state_in(tmp_path)
    other.identity = other.identity | {"model_path": "another"}
    with pytest.raises(UserError, match="model_path"):
        other.begin(Start(resume=True))


def test_a_run_does_not_go_on_with_a_changed_reward_unless_it_is_told_to(tmp_path, caplog):
    trained_in(tmp_path, 1)

    def resumed(code: dict[str, str], **keys) -> int:
        caplog.clear()
        other = state_in(tmp_path, **keys)
        other.identity = other.identity | {identity.CODE: code}
        other.begin(Start(resume=True))
        other.save()
        return other.trainer.iteration

    names = identity_code(tmp_path)
    assert "tests/parts/trainers.py" in names  # the file of the reward of these tests
    changed = names | {"tests/parts/trainers.py": "another"}
    with pytest.raises(
        UserError, match=r"has changed since then: tests/parts/trainers.py; .*--allow_changed_reward true"
    ):
        resumed(changed)
    assert resumed(changed, allow_changed_reward=True) == 1
    (warning,) = (one.getMessage() for one in caplog.records if one.levelname == "WARNING")
    assert "tests/parts/trainers.py" in warning
    with pytest.raises(UserError, match="has changed"):  # the new code is what the next resume compares with
        resumed(names)


@pytest.mark.parametrize(("registry", "key"), [(AdvantageFactory, "advantage_estimator"), (LossFactory, "policy_loss")])
def test_a_run_does_not_go_on_with_a_changed_estimator_or_loss_of_the_users(tmp_path, monkeypatch, registry, key):
    for table in ("classes", "formulas"):
        monkeypatch.setitem(getattr(registry, table), "mine", None)  # what is registered goes when the test ends

    def begin(text, start):
        file = tmp_path / "my_formula.py"
        file.write_text(text, encoding="utf-8")
        registry.register("mine", load_file(file, "my_formula").mine)
        state = state_in(tmp_path, **{key: "mine"})
        state.begin(start)
        state.save()

    text = "SCALE = 2\n\ndef mine(*given):\n    return SCALE\n"
    monkeypatch.setitem(sys.modules, "my_formula", None)
    begin(text, Start())
    begin(f"# the same\n{text}", Start(resume=True))
    with pytest.raises(UserError, match=r"changed since then: my_formula\.py; .*--allow_changed_reward"):
        begin(text.replace("2", "3"), Start(resume=True))


def identity_code(folder) -> dict[str, str]:
    return json.loads((folder / "checkpoints" / "iter_000001" / "trainer.json").read_text())["identity"][identity.CODE]


def test_a_run_that_began_before_code_was_recorded_goes_on_with_a_line(tmp_path, caplog):
    caplog.set_level("INFO", logger="rlhf_dialog")
    first = state_in(tmp_path)
    del first.identity[identity.CODE]
    first.begin(Start())
    first.save()
    caplog.clear()
    other = state_in(tmp_path)
    other.begin(Start(resume=True))
    assert len([one for one in caplog.messages if "does not record the code" in one]) == 1
    other.identity[identity.CODE] = {}  # a reward of this package
    caplog.clear()
    other.begin(Start(resume=True))
    assert "does not record the code" not in caplog.text


@pytest.mark.slow
def test_a_resumed_run_follows_its_own_checkpoints_elsewhere_with_a_line(tmp_path, caplog):
    caplog.set_level("INFO", logger="rlhf_dialog")
    trained_in(tmp_path / "run", 1)
    (tmp_path / "metrics.jsonl").write_text("")
    (tmp_path / "run/checkpoints").rename(tmp_path / "scratch")
    (tmp_path / "run/checkpoints").symlink_to(tmp_path / "scratch")
    for start, iteration in ((Start(resume=True), 1), (Start(weights_from=tmp_path / "run"), 0)):
        caplog.clear()
        other = state_in(tmp_path / ("run" if start.resume else "other"))
        other.run_folder.mkdir(exist_ok=True)
        other.begin(start)
        assert other.trainer.iteration == iteration
        assert len([text for text in caplog.messages if "is a link" in text and str(tmp_path / "scratch") in text]) == 1
    trained_in(tmp_path / "new", 1)
    assert not [text for text in caplog.messages if "new/checkpoints is a link" in text]


def flip(path):
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)


@pytest.mark.slow
def test_a_flipped_bit_is_refused_unless_only_sizes_are_compared(tmp_path):
    trained_in(tmp_path, 1)
    flip(tmp_path / "checkpoints/iter_000001/policy_optimizer.safetensors")
    with pytest.raises(UserError, match=r"policy_optimizer\.safetensors has changed since it was written"):
        state_in(tmp_path).begin(Start(resume=True))
    (tmp_path / "new").mkdir()
    with pytest.raises(UserError, match=r"policy_optimizer\.safetensors has changed since it was written"):
        state_in(tmp_path / "new").begin(Start(weights_from=tmp_path))
    state_in(tmp_path, verify_checkpoint="sizes").begin(Start(resume=True))


def test_other_versions_are_reported_in_one_line(tmp_path, monkeypatch, caplog):
    trained_in(tmp_path, 1)
    known = verification.versions()
    monkeypatch.setattr(verification, "versions", lambda: known | {"torch": "99.0"})
    state_in(tmp_path).begin(Start(resume=True))
    said = f"resumed with other versions, which may change the numbers: torch {known['torch']} -> 99.0"
    assert caplog.messages.count(said) == 1


class Evaluated(Service):
    key = "validation"

    def __init__(self, iteration):
        self.iteration = iteration

    def state_dict(self):
        return {"best": {"iteration": self.iteration}}

    def load_state_dict(self, state):
        self.iteration = state["best"]["iteration"]


@pytest.mark.parametrize("best", [1, 2])
def test_a_resumed_run_knows_the_best_iteration_and_writes_its_agent_again(tmp_path, best):
    first, other = state_in(tmp_path), state_in(tmp_path)
    first.services, other.services = [Evaluated(best)], [Evaluated(0)]
    first.begin(Start())
    for first.trainer.iteration in (1, 2):
        first.save()
    (tmp_path / "metrics.jsonl").write_text('{"iteration": 1}\n{"iteration": 2}\n')
    shutil.rmtree(tmp_path / "best_agent")
    other.begin(Start(resume=True))
    assert other.services[0].iteration == best
    assert (tmp_path / "best_agent").is_dir() == (best == 2)  # a kill came before it was written


@pytest.mark.slow
def test_a_run_with_the_weights_of_another_starts_its_own_count(tmp_path):
    first = trained_in(tmp_path / "old", 2)
    state = state_in(tmp_path / "new")
    (tmp_path / "new").mkdir()
    state.begin(Start(weights_from=tmp_path / "old"))
    weights = parameters(first.trainer.models.policy)
    assert all(torch.equal(p, weights[name]) for name, p in parameters(state.trainer.models.policy).items())
    assert state.trainer.iteration == 0
    assert [path.name for path in (tmp_path / "new/checkpoints").glob("iter_*")] == ["iter_000000"]
