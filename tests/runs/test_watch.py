"""`watch`: what the calls of another trainer leave, what a kill leaves, and that nothing but an alarm can stop the training."""

import asyncio
import fcntl
import inspect
import json
import math
import os
from types import SimpleNamespace

import numpy as np
import pytest

from rlhf_dialog import Dialogue, RewardFactory, UserError, watch
from rlhf_dialog.commands import report
from rlhf_dialog.errors import RunStopped
from rlhf_dialog.evaluation.run_page.verdict import verdict
from rlhf_dialog.runs import watch as module
from rlhf_dialog.runs.run_reader import read_run
from rlhf_dialog.runs.services.guard import unpaired_change
from tests.parts.judges import Words

CHAT = [{"role": "system", "content": "Be kind ."}, {"role": "user", "content": "the red door"}]


@pytest.fixture(autouse=True)
def _no_folders_of_other_tests(monkeypatch):
    monkeypatch.setattr(module, "_watches", {})
    monkeypatch.delenv("RANK", raising=False)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def pays_words(prompts, completions, **columns):
    """Words."""
    return [float(len(text.split())) if text else None for text in completions]


def step(number):
    return SimpleNamespace(global_step=number)


def call(reward, number=None, texts=("a b", "c")):
    more = {} if number is None else {"trainer_state": step(number)}
    return reward(prompts=["hi"] * len(texts), completions=list(texts), completion_ids=[[1, 2]] * len(texts), **more)


def test_a_call_in_trls_form_makes_a_row(tmp_path):
    reward = watch(pays_words, tmp_path / "w")
    assert (reward.__name__, reward.__doc__) == ("pays_words", "Words.")
    assert inspect.signature(reward) == inspect.signature(pays_words)
    prompts = [CHAT, CHAT, "the red door"]
    texts = ["the red cat the red", "", "door"]
    found = reward(prompts=prompts, completions=texts, completion_ids=[[1] * 6, [1], [1, 2]], trainer_state=step(4))
    assert found == [5.0, None, 1.0]
    (row,) = lines(tmp_path / "w" / "metrics.jsonl")
    # pairs: (the red) (red cat) (cat the) (the red): 3 of 4 differ; 2 of 4 are in "the red door"
    assert row == {
        **{"iteration": 1, "episodes": 3, "step": 4, "objective/score": 3.0, "response/unscored": 1},
        **{"response/length": 3.0, "response/distinct_2": 0.75, "response/repetition": 0.25},
        "response/copied": pytest.approx(0.5 / 3),
    }
    ledger = lines(tmp_path / "w" / "ledger.jsonl")
    assert [(one["score"], one["length"], one["reply"]) for one in ledger] == [
        *((5.0, 6, "the red cat the red"), (None, 1, ""), (1.0, 2, "door"))
    ]
    assert ledger[0]["prompt"] == ["the red door"]
    assert ledger[0]["index"] == ledger[1]["index"] != ledger[2]["index"]  # the system message counts


def test_async_functions_stay_async(tmp_path):
    async def slow(completions, **columns):
        await asyncio.sleep(0)
        return [1.0 for _ in completions]

    class Slow:
        async def __call__(self, completions, **columns):
            return [2.0 for _ in completions]

    for function, score in ((slow, 1.0), (Slow(), 2.0)):
        reward = watch(function, tmp_path / getattr(function, "__name__", "object"))
        assert inspect.iscoroutinefunction(reward)
        assert asyncio.run(reward(completions=["a", "b"])) == [score, score]
        (row,) = lines(tmp_path / getattr(function, "__name__", "object") / "metrics.jsonl")
        assert (row["objective/score"], row["episodes"]) == (score, 2)


def test_dialogues_iterators_and_arrays(tmp_path):
    ours = watch(lambda dialogues: np.array([0.5 for _ in dialogues]), tmp_path / "ours")
    assert ours([Dialogue(["Hi ."], "Hello there .")]).tolist() == [0.5]
    assert lines(tmp_path / "ours" / "metrics.jsonl")[0]["response/length"] == 3

    iterates = watch(lambda completions, **columns: (1.0 for _ in completions), tmp_path / "iterator")
    assert iterates(completions=["a", "b"]) == [1.0, 1.0]
    assert lines(tmp_path / "iterator" / "metrics.jsonl")[0]["objective/score"] == 1.0


def test_64_calls_of_a_function_of_one_reply_make_a_row(tmp_path):
    def compute_score(data_source, solution_str, ground_truth, extra_info=None):
        return {"score": 2.0, "acc": solution_str == ground_truth, "why": "text"}

    reward = watch(compute_score, tmp_path / "w", reply="solution_str")
    for number in range(130):
        reward("math", f"{number % 2}", ground_truth="1")
    first, second = lines(tmp_path / "w" / "metrics.jsonl")
    assert (first["episodes"], second["episodes"]) == (64, 128)
    assert (first["objective/score"], first["reward/acc"]) == (2.0, 0.5)
    assert "response/copied" not in first
    assert sum("reply" in row for row in lines(tmp_path / "w" / "ledger.jsonl")) == 2 * 8


def test_functions_of_verifiers_know_prompt_and_completion(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CALLS", 1)

    async def reward(prompt, completion, answer, state):
        return 1.0

    answer = [{"role": "assistant", "content": [{"type": "text", "text": "the red house"}, {"type": "image"}]}]
    watched = watch(reward, tmp_path / "w", reply="completion")
    assert asyncio.run(watched(prompt=CHAT, completion=answer, answer="x", state={})) == 1.0
    assert lines(tmp_path / "w" / "metrics.jsonl")[0]["response/copied"] == 0.5


def test_the_report_draws_it_and_says_that_replies_become_longer(tmp_path, capsys):
    reward = watch(pays_words, tmp_path / "w")
    for number in range(16):
        call(reward, number, [" ".join("abcdefghijklmnopqrst"[: 2 + number])])
    assert report.main([str(tmp_path / "w")]) == 0
    assert "rises" in capsys.readouterr().out
    assert (
        "replies become longer" not in (tmp_path / "w" / "report.html").read_text().partition('"runs"')[2]
    )  # 2 tokens each
    again = watch(pays_words, tmp_path / "words")
    for number in range(16):
        again(prompts=["hi"], completions=[" ".join("abcdefghijklmnopqrst"[: 2 + number])], trainer_state=step(number))
    rows = read_run(tmp_path / "words").rows
    assert [one.sign for one in verdict(rows, {})[1] if one.state == "sick"] == ["replies become longer"]


def test_the_rows_of_ranks_are_joined_by_their_replies(tmp_path, monkeypatch):
    for rank, texts in (("0", ["a b c"]), ("1", ["a", "b", "c d e"])):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setattr(module, "_watches", {})
        reward = watch(pays_words, tmp_path / "w")
        call(reward, 0, texts)
        call(reward, 1, texts[:2])
    call(reward, 2, ["a b"])  # of one rank alone
    assert sorted(path.name for path in (tmp_path / "w").glob("*.jsonl")) == [
        *("ledger.1.jsonl", "ledger.jsonl", "metrics.1.jsonl", "metrics.jsonl")
    ]
    run = read_run(tmp_path / "w")
    numbers = [[row[name] for name in ("iteration", "episodes", "step", "objective/score")] for row in run.rows]
    assert numbers == [[1, 4, 0, 2.0], [2, 7, 1, pytest.approx(5 / 3)], [3, 8, 2, 2.0]]
    assert {row["reply"] for row in run.first} == {"a b c", "a", "b", "c d e"}
    assert [row["reply"] for row in run.newest] == ["a b"]


def test_a_process_without_a_rank_takes_files_of_its_own(tmp_path):
    folder = tmp_path / "w"
    folder.mkdir()
    other = os.open(folder / ".lock.0", os.O_RDWR | os.O_CREAT)
    fcntl.flock(other, fcntl.LOCK_EX)
    call(watch(pays_words, folder))
    os.close(other)
    assert [path.name for path in folder.glob("metrics*")] == ["metrics.1.jsonl"]


def test_after_a_kill_the_rows_of_a_step_are_there_once(tmp_path):
    folder = tmp_path / "w"
    reward = watch(pays_words, folder)
    for number in range(4):
        call(reward, number, [f"old {number}"])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 5, "epis')
    with (folder / "ledger.jsonl").open("a") as file:
        file.write(json.dumps({"iteration": 5, "score": 1.0}) + "\n{")
    reward = watch(pays_words, folder)  # resumed from the checkpoint after two steps
    for number in (2, 3, 4):
        call(reward, number, [f"new {number}"])
    rows = lines(folder / "metrics.jsonl")
    assert [(row["iteration"], row["step"], row["episodes"]) for row in rows] == [(i + 1, i, i + 1) for i in range(5)]
    assert [row["reply"] for row in lines(folder / "ledger.jsonl")] == ["old 0", "old 1", "new 2", "new 3", "new 4"]


def test_a_run_that_begins_anew_sets_the_old_files_aside(tmp_path):
    folder = tmp_path / "w"
    for text in ("first run", "second run", "third"):
        call(watch(pays_words, folder), 0, [text])
    replies = {path.name: [row["reply"] for row in lines(path)] for path in folder.glob("ledger*")}
    assert replies == {
        **{"ledger.before-1.jsonl": ["first run"], "ledger.before-2.jsonl": ["second run"], "ledger.jsonl": ["third"]}
    }
    assert len(read_run(folder).rows) == 1


def test_without_steps_the_rows_go_on(tmp_path):
    for _ in range(2):
        call(watch(pays_words, tmp_path / "w"))
    assert [row["iteration"] for row in read_run(tmp_path / "w").rows] == [1, 2]


def shorter_is_better(completions, **columns):
    return [-len(text.split()) for text in completions]


def replies(number, words):
    """16 replies of `words` words or one more, to 4 prompts, whose scores vary."""
    return {
        "prompts": [f"prompt {number} {i // 4}" for i in range(16)],
        "completions": [" ".join(["word"] * (words + i % 2)) for i in range(16)],
    }


@pytest.mark.parametrize("killed", [False, True])
def test_a_score_that_rises_while_the_judge_falls(tmp_path, caplog, killed):
    reward = watch(pays_words, tmp_path / "w", judge=shorter_is_better)
    for number in range(32):
        if killed and number == 20:
            reward = watch(pays_words, tmp_path / "w", judge=shorter_is_better)
        assert "the score changed" not in caplog.text
        reward(**replies(number, 5 if number < 16 else 9))
    assert "from the first 256 replies to the newest the score changed by +4" in caplog.text
    assert "but judge/shorter_is_better by -4" in caplog.text
    rows = lines(tmp_path / "w" / "metrics.jsonl")
    assert [row.get("guard/alarm") for row in rows] == [None] * 31 + [1.0]
    assert (rows[0]["judge/shorter_is_better"], rows[-1]["judge/shorter_is_better"]) == (-5.5, -9.5)


def constant(completions, **columns):
    return [1.0 for _ in completions]


@pytest.mark.parametrize(
    ("function", "judge", "words"),
    [
        (pays_words, None, 9),
        (pays_words, shorter_is_better, 5),
        (pays_words, pays_words, 9),
        (constant, shorter_is_better, 9),
    ],
)
def test_no_alarm_without_a_judge_a_rise_or_a_fall(tmp_path, function, judge, words):
    reward = watch(function, tmp_path / "w", judge=judge, action="raise")
    for number in range(32):
        reward(**replies(number, 5 if number < 16 else words))
    assert lines(tmp_path / "w" / "metrics.jsonl")[-1].get("guard/alarm", 0.0) == 0.0


def test_the_alarm_can_end_the_training(tmp_path, monkeypatch):
    monkeypatch.setattr(RewardFactory, "classes", RewardFactory.classes | {"Words": Words})
    shorter = watch(shorter_is_better, tmp_path / "w", judge="Words", action="raise")
    for number in range(31):
        shorter(**replies(number, 9 if number < 16 else 5))
    with pytest.raises(RunStopped, match=r"judge/words by -4"):
        shorter(**replies(31, 5))
    assert lines(tmp_path / "w" / "metrics.jsonl")[-1]["guard/alarm"] == 1.0


def test_the_change_between_samples_is_welchs_over_the_means_of_prompts():
    """Means of prompts: 1, 3 and 5, then 4, 6 and 11; variances 4 and 13 over 3 prompts each."""
    first, last = np.array([0.0, 2.0, 3.0, 5.0]), np.array([4.0, 5.0, 7.0, 11.0])
    change = unpaired_change(first, last, [7, 7, 8, 9], [1, 2, 2, 3])
    assert (change.mean, change.error, change.num_dialogues) == (4.0, pytest.approx(math.sqrt(17 / 3)), 3)
    alone = unpaired_change(first, last, [7] * 4, [7] * 4)
    assert (alone.mean, alone.num_dialogues) == (4.25, 4)


def test_what_fails_ends_the_watching_and_not_the_training(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    reward = watch(pays_words, tmp_path / "file" / "w")
    assert [call(reward), call(reward)] == [[2.0, 1.0]] * 2
    assert caplog.text.count("pays_words is not watched any more: NotADirectoryError") == 1

    def broken(completions, **columns):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        call(watch(broken, tmp_path / "b"))
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"action": "stop"}, "'warn' or 'raise'"),
        ({"reply": "answer"}, "'answer' is no parameter of pays_words"),
        ({"folder": "taken"}, "taken is that of shorter_is_better"),
        ({"folder": "run"}, "the folder of a run"),
        ({"judge": "Nobody"}, "Nobody"),
        ({"judge": {"args": {}}}, "None"),
        ({"function": dict}, "wanted a function"),
        ({"function": lambda a, b: []}, r"f\(dialogues\)"),
    ],
)
def test_mistakes(tmp_path, monkeypatch, more, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("")
    watch(shorter_is_better, "taken")
    with pytest.raises(UserError, match=words):
        watch(**{"function": pays_words, "folder": "new", **more})
