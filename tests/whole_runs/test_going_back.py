"""Going back to an older checkpoint: the new branch is kept, whatever came later steps aside whole, and nothing is lost."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from folders import contents, names
from ppo_runs import planned, same, settings, weights, without_clocks
from safetensors.torch import load_file

from rlhf_dialog import ChatAgent, PPOAgent, main

RUN = Path("run_results/ppo")
CHECKPOINTS = RUN / "checkpoints"
EVERY = ["--save_interval", "1", "--keep_checkpoints", "20"]
OTHER = ["--lr", "1e-4"]  # makes the numbers of the new branch its own


@pytest.fixture(scope="module")
def ten(world, tmp_path_factory):
    """The folder of a finished run: iterations 1 to 10, checkpoints 2, 4, 6, 8 and 10."""
    root = tmp_path_factory.mktemp("ten")
    (root / "ppo.yaml").write_text(yaml.safe_dump(settings(world)), encoding="utf-8")
    words = ["--config", str(root / "ppo.yaml"), "--run_dir", str(root), "--save_interval", "2"]
    assert main([*words, "--max_iterations", "10", "--keep_checkpoints", "5"]) == 0
    return root / "ppo"


def iterations(folder):
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["iteration"] for line in lines]


def copies(ten, iteration=2):
    """`ten` as the run of this test, and as a run that never came further than `iteration`."""
    fresh = RUN.with_name("fresh")
    for folder in (RUN, fresh):
        shutil.copytree(ten, folder)
    shutil.rmtree(fresh / "agent")
    for path in (fresh / "checkpoints").glob("iter_*"):
        if int(path.name[5:]) > iteration:
            shutil.rmtree(path)
    (fresh / "checkpoints/latest").write_text(f"iter_{iteration:06d}", encoding="utf-8")
    lines = (fresh / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (fresh / "metrics.jsonl").write_text("".join(lines[:iteration]), encoding="utf-8")
    return RUN, fresh


def equal_runs(one, other):
    assert without_clocks(one) == without_clocks(other)
    assert same(weights(one / "agent"), weights(other / "agent"))


# -- whole runs


def test_a_pointer_that_somebody_set_back_begins_a_branch_that_is_kept(run, ten):
    """It was: each new checkpoint removed by the call that wrote it, and metrics of the iterations 1 to 4, 9, 10."""
    folder, fresh = copies(ten)
    (CHECKPOINTS / "latest").write_text("iter_000002", encoding="utf-8")
    words = [*OTHER, "--save_interval", "1", "--keep_checkpoints", "4"]
    assert run("--resume", *words, "--max_iterations", "4") == 0
    assert names(CHECKPOINTS) == {"latest", "abandoned", "iter_000002", "iter_000003", "iter_000004"}
    assert (CHECKPOINTS / "latest").read_text(encoding="utf-8") == "iter_000004"
    assert run("--resume", *words, "--max_iterations", "6") == 0
    assert names(CHECKPOINTS) == {"latest", "abandoned", *(f"iter_{i:06d}" for i in (3, 4, 5, 6))}
    assert iterations(folder) == [1, 2, 3, 4, 5, 6]
    assert run("--resume", *words, "--max_iterations", "6", "--experiment_name", "fresh") == 0
    equal_runs(folder, fresh)


@pytest.mark.parametrize("name", ["iter_000002", "2", "000002", "iter_2"])
def test_going_back_keeps_everything_that_came_later(run, ten, caplog, name):
    folder, fresh = copies(ten)
    (folder / "evaluation.json").write_text("{}", encoding="utf-8")
    assert run("--resume_from", name, *OTHER, "--max_iterations", "3") == 0
    assert "went back to iter_000002" in caplog.text
    assert "From now on --resume continues this branch" in caplog.text
    abandoned = CHECKPOINTS / "abandoned"
    later = {f"iter_{i:06d}" for i in (4, 6, 8, 10)}
    assert names(abandoned) == {
        *later,
        *(f"{one}_after_iter_000002.jsonl" for one in ("metrics", "ledger")),
        "agent",
        "evaluation.json",
    }
    for one in later:
        assert contents(abandoned / one) == contents(ten / "checkpoints" / one)
    assert contents(abandoned / "agent") == contents(ten / "agent")
    lines = (ten / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    assert (abandoned / "metrics_after_iter_000002.jsonl").read_bytes() == b"".join(lines[2:])
    assert run("--resume", *OTHER, "--max_iterations", "3", "--experiment_name", "fresh") == 0
    equal_runs(folder, fresh)
    assert iterations(folder) == [1, 2, 3]


def test_going_back_twice_overwrites_nothing(run, ten):
    folder, fresh = copies(ten)
    words = [*EVERY, "--max_iterations", "4"]
    assert run("--resume_from", "2", "--lr", "1e-2", *words) == 0
    second = {path: contents(folder / path) for path in ("checkpoints/iter_000003", "checkpoints/iter_000004", "agent")}
    tail = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[2:]
    assert run("--resume_from", "2", *OTHER, *words) == 0
    abandoned = CHECKPOINTS / "abandoned"
    assert contents(abandoned / "iter_000004") == contents(ten / "checkpoints/iter_000004")
    assert contents(abandoned / "agent") == contents(ten / "agent")
    assert contents(abandoned / "iter_000004.2") == second["checkpoints/iter_000004"]
    assert contents(abandoned / "iter_000003") == second["checkpoints/iter_000003"]
    assert contents(abandoned / "agent.2") == second["agent"]
    assert (abandoned / "metrics_after_iter_000002.2.jsonl").read_text(encoding="utf-8") == "".join(tail)
    assert run("--resume", *OTHER, *words, "--experiment_name", "fresh") == 0
    equal_runs(folder, fresh)


def test_the_agent_of_the_abandoned_branch_misleads_nobody(run, rewards, ten):
    copies(ten)
    assert run("--resume_from", "2", "--max_steps_typo", "1") == 2
    assert (RUN / "agent").exists()
    agent = PPOAgent.from_config("ppo.yaml", max_iterations=4, lr=1e-4)
    agent = PPOAgent(agent.config, resume_from=2)
    agent.save = lambda _: None  # as if it ended before its last step
    agent.train()
    assert not (RUN / "agent").exists()
    assert isinstance(ChatAgent.load(CHECKPOINTS / "abandoned/agent").chat("Hello"), str)


def test_an_abandoned_checkpoint_goes_on_in_a_folder_of_its_own(run, ten, capsys):
    """As the error for its name says."""
    folder, _ = copies(ten)
    assert run("--resume_from", "2", *OTHER, "--max_iterations", "3") == 0
    capsys.readouterr()
    assert run("--resume_from", "abandoned/iter_000008") == 2
    said = capsys.readouterr().err
    assert "abandoned contains iter_000004, iter_000006, iter_000008, iter_000010; to continue one of these" in said
    assert "--resume --experiment_name" in said
    new = RUN.with_name("new")
    shutil.copytree(CHECKPOINTS / "abandoned/iter_000008", new / "checkpoints/iter_000008")
    older = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[:2]
    later = (CHECKPOINTS / "abandoned/metrics_after_iter_000002.jsonl").read_text(encoding="utf-8")
    (new / "metrics.jsonl").write_text("".join(older) + later, encoding="utf-8")
    assert run("--resume", "--max_iterations", "10", "--experiment_name", "new") == 0
    equal_runs(new, ten)


# -- the best


WORDS = ["--eval_interval", "1", "--eval_episodes", "2", *EVERY]


def evaluated(run, *values):
    """A run whose evaluations give these values."""
    assert run(*WORDS, *planned(*values), "--max_iterations", str(len(values))) == 0


@pytest.mark.parametrize(("values", "best"), [((0.6, 0.2, 0.9), 1), ((0.2, 0.6, 0.9), 2)])
def test_the_best_of_the_checkpoint_counts_again(run, values, best):
    evaluated(run, *values)
    checkpoint = contents(RUN / "best_agent")
    assert run("--resume_from", "2", *WORDS, *planned(0.1), "--max_iterations", "3") == 0
    assert (CHECKPOINTS / "best").read_text(encoding="utf-8") == f"iter_00000{best}"
    assert contents(CHECKPOINTS / "abandoned/best_agent") == checkpoint
    found = load_file(RUN / "best_agent/model.safetensors")
    expected = load_file(CHECKPOINTS / f"iter_00000{best}/policy.safetensors")
    stored = {name: x for name, x in found.items() if f"lm.{name}" in expected}  # of tied weights one name is
    assert len(stored) >= len(found) - 1
    assert all((x == expected[f"lm.{name}"]).all() for name, x in stored.items())
    state = json.loads((CHECKPOINTS / "iter_000003/trainer.json").read_text(encoding="utf-8"))
    assert state["validation"]["best"] == {"metric": "score", "num_prompts": 2, "value": 0.6, "iteration": best}


def test_weights_of_the_best_leave_no_trace_in_the_run(run):
    """They are loaded to write its agent; then those of the checkpoint are loaded again."""
    evaluated(run, 0.6, 0.2, 0.9, 0.1)
    shutil.copytree(RUN, RUN.with_name("kept"))
    assert run("--resume_from", "2", *WORDS, *planned(0.9, 0.1), "--max_iterations", "4") == 0
    equal_runs(RUN, RUN.with_name("kept"))
    assert same(weights(RUN / "best_agent"), weights(RUN.with_name("kept") / "best_agent"))


def test_a_best_that_is_no_longer_there_has_no_agent(run, caplog):
    evaluated(run, 0.6, 0.2, 0.9)
    shutil.rmtree(CHECKPOINTS / "iter_000001")  # as housekeeping does once there is a better one
    assert run("--resume_from", "2", *WORDS, *planned(0.1), "--max_iterations", "3") == 0
    assert "the best checkpoint so far, of iteration 1, no longer exists" in caplog.text
    assert "its agent: none, because" in caplog.text
    assert not (CHECKPOINTS / "best").exists()
    assert not (RUN / "best_agent").exists()
    assert run("--resume", *WORDS, *planned(0.7), "--max_iterations", "4") == 0
    assert (CHECKPOINTS / "best").read_text(encoding="utf-8") == "iter_000004"
    assert same(weights(RUN / "best_agent"), weights(RUN / "agent"))


def test_a_best_that_is_older_stays(run):
    evaluated(run, 0.6, 0.2, 0.1)
    before = contents(RUN / "best_agent")
    assert run("--resume_from", "2", *WORDS, *planned(0.1), "--max_iterations", "3") == 0
    assert (CHECKPOINTS / "best").read_text(encoding="utf-8") == "iter_000001"
    assert contents(RUN / "best_agent") == before


# -- what is refused


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--resume_from"],
            "'true' is not a checkpoint in run_results/ppo/checkpoints; choose one of iter_000002, iter_000004",
        ),
        (["--resume_from", "3"], "'3' is not a checkpoint in run_results/ppo/checkpoints; choose one of iter_000002"),
        (["--resume_from", "000012"], "'000012' is not a checkpoint"),  # YAML reads 10
        (["--resume_from", "../ppo/checkpoints/iter_000002"], "is not a checkpoint in"),
        (
            ["--resume_from", "2", "--overwrite"],
            "--overwrite replaces the run, --resume_from goes on with it; give one",
        ),
        (["--resume_from", "2", "--resume_weights_only", "run_results/ppo"], "give one of them"),
        (["--resume_from", "2", "--experiment_name", "new"], "run_results/new/checkpoints; it contains none"),
        (["--resume_from", "2", "--seed", "5"], "seed: 5 here, 0 in the checkpoint"),
    ],
)
def test_what_cannot_go_back_changes_nothing(run, refused, ten, words, said):
    copies(ten)
    before = contents(RUN)
    assert said in refused(*words)
    assert contents(RUN) == before


def test_a_checkpoint_that_is_damaged_leaves_the_later_ones_where_they_are(run, ten, capsys):
    copies(ten)
    (CHECKPOINTS / "iter_000002/policy_optimizer.safetensors").write_text("half", encoding="utf-8")
    before = contents(RUN)
    assert run("--resume_from", "2") == 2
    assert "iter_000002: is damaged" in capsys.readouterr().err
    assert contents(RUN) == before


def test_a_smoke_test_goes_back_nowhere(run, ten):
    copies(ten)
    before = contents(RUN)
    assert run("--resume_from", "2", "--smoke") == 0
    assert contents(RUN) == before


def test_a_name_that_is_not_the_iteration_is_refused(run, ten, refused):
    copies(ten)
    shutil.copytree(CHECKPOINTS / "iter_000002", CHECKPOINTS / "iter_000003")
    assert "iter_000003: contains the state of iteration 2; rename it to iter_000002" in refused("--resume_from", "3")


def test_resume_from_replaces_a_pointer_that_leads_nowhere(run, ten):
    copies(ten)
    (CHECKPOINTS / "latest").write_text("iter_000077", encoding="utf-8")
    assert run("--resume_from", "10", "--max_iterations", "11") == 0
    assert iterations(RUN) == list(range(1, 12))
    assert not (CHECKPOINTS / "abandoned").exists()


GAPS = {
    "of two branches": ([1, 2, 3, 4, 9, 10], "contains only iterations 1 to 4 without a gap"),
    "too short": ([1, 2, 3, 4, 5], "contains only iterations 1 to 5 without a gap"),
    "twice": ([1, 2, 3, 4, 4, 5, 6, 7, 8, 9, 10], "contains only iterations 1 to 4 without a gap"),
    "only the end": ([9, 10], "does not start with iteration 1"),
    "missing": (None, "is missing"),
}


@pytest.mark.parametrize("gap", GAPS)
def test_metrics_that_do_not_reach_the_checkpoint(run, refused, ten, gap):
    found, said = GAPS[gap]
    copies(ten)
    if found is None:
        (RUN / "metrics.jsonl").unlink()
    else:
        lines = [f'{{"iteration": {i}}}\n' for i in found]
        (RUN / "metrics.jsonl").write_text("".join(lines), encoding="utf-8")
    message = refused("--resume")
    assert f"run_results/ppo/metrics.jsonl: {said}, but iter_000010 is of iteration 10; " in message
    assert "a new run with its weights: --resume_weights_only run_results/ppo --experiment_name <a new name>" in message
    fits = found is not None and found[:4] == [1, 2, 3, 4]
    assert ("continue from a checkpoint that fits, --resume_from iter_000004, or" in message) == fits
    if fits:
        assert run("--resume_from", "iter_000004", "--max_iterations", "5") == 0
        assert iterations(RUN) == [1, 2, 3, 4, 5]


# -- on the disk
