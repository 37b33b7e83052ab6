"""What is measured of replies, replies without a model, and the files of scripts/evaluate.py."""

import json
import math
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_dialog.commands import evaluate
from rlhf_dialog.commands.evaluate import EvaluateOptions, Task, choose_sampling, read_task
from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.data.prompts import load_prompts
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.replies import pick_prompts
from rlhf_dialog.models.generation import Sampling
from tests.parts import tiny
from tests.parts.evaluations import ACTS, BASELINES, COUNTS, LENGTH, OVERLAP, evaluated, save_plain, save_run
from tests.parts.yaml_files import SMALL

RUN = {"score", "length_match", "reference_perplexity"}


def finite(node) -> bool:
    return all(finite(value) for value in node.values()) if isinstance(node, dict) else math.isfinite(node)


def check_metrics(metrics: dict, with_model: bool = True) -> None:
    assert set(metrics) == COUNTS | OVERLAP | RUN
    for name, found in metrics.items():
        assert set(found) == {"mean", "low", "high"}
        if name == "reference_perplexity" and not with_model:
            assert set(found.values()) == {None}
        else:
            assert found["low"] <= found["mean"] <= found["high"], name
            assert finite(found)


@pytest.mark.slow
def test_one_agent(script, runs, prompts, tmp_path, capsys):
    result = evaluated(script, tmp_path, "--agent", runs[0], "--batch_size", 16)
    assert set(result) == {"metrics", "baselines", "local_names", "settings"}
    check_metrics(result["metrics"])
    assert set(result["baselines"]) == BASELINES
    for metrics in result["baselines"].values():
        check_metrics(metrics, with_model=False)
    assert result["metrics"]["mean_length"]["mean"] <= 9
    score = result["metrics"]["meteor"]["mean"] + 0.5 * result["metrics"]["length_match"]["mean"]
    assert result["metrics"]["score"]["mean"] == pytest.approx(score)
    settings = result["settings"]
    assert (settings["split"], settings["num_prompts"], settings["resampled"]) == (
        "validation",
        len(prompts),
        "dialogues",
    )
    assert settings["num_dialogues"] == len({prompt.meta["dialogue"] for prompt in prompts}) < len(prompts)
    assert (settings["sampling"]["max_new_tokens"], settings["meteor"]) == (9, "meteor_exact_stem")
    assert "true_replies" in capsys.readouterr().out


@pytest.mark.slow
def test_another_split_and_other_numbers_of_turns(script, data, runs, tmp_path):
    settings = evaluated(script, tmp_path, "--agent", runs[0], "--split", "test", "--min_context_size", 3)["settings"]
    assert (settings["split"], settings["min_context_size"]) == ("test", 3)
    assert settings["num_prompts"] == len([one for one in load_prompts(data, "test") if len(one.prompt_turns) >= 3])


@pytest.mark.slow
def test_the_separator_of_the_agent_is_replaced_in_the_data(tmp_path):
    (tmp_path / "test.jsonl").write_text('{"dialog": ["a | b", "c"]}\n', encoding="utf-8")
    (prompt,) = evaluate.Task(str(tmp_path), 5, 1, "|").prompts("test")
    assert prompt.prompt_turns == ["a b"]


@pytest.mark.slow
def test_two_agents_on_the_same_prompts(script, runs, tmp_path):
    few = ["--max_prompts", 9]
    result = evaluated(script, tmp_path, "--agent", runs[0], "--baseline", runs[1], *few)
    assert set(result) == {"before", "after", "difference", "baselines", "local_names", "settings"}
    for name in ("before", "after", "difference"):
        check_metrics(result[name])
    for name, found in result["difference"].items():
        expected = result["after"][name]["mean"] - result["before"][name]["mean"]
        assert found["mean"] == pytest.approx(expected, abs=1e-12)
    assert result["settings"]["num_prompts"] == 9
    assert evaluated(script, tmp_path, "--agent", runs[0], *few)["metrics"] == result["after"]
    config = runs[1].parent / "config.yaml"
    assert evaluated(script, tmp_path, "--agent", runs[1], "--config", config, *few)["metrics"] == result["before"]
    other = evaluated(script, tmp_path, "--agent", runs[0], *few, "--seed", 4)
    assert other["metrics"] != result["after"]


@pytest.mark.slow
def test_the_replies_are_those_that_were_measured(script, runs, prompts, tmp_path):
    """Lengths and shares recomputed from the file alone."""
    replies = tmp_path / "new" / "replies.jsonl"
    result = evaluated(script, tmp_path, "--agent", runs[0], "--replies", replies, "--max_prompts", 7)
    lines = [json.loads(line) for line in replies.read_text(encoding="utf-8").splitlines()]
    assert [line["prompt"] for line in lines] == [prompts[line["index"]].prompt_turns for line in lines]
    for name, metrics in {"metrics": result["metrics"], **result["baselines"]}.items():
        texts = [line["replies"][name]["response"] for line in lines]
        assert metrics["mean_words"]["mean"] == pytest.approx(sum(len(text.split()) for text in texts) / 7), name
    shares = [line["replies"]["metrics"]["truncated"] for line in lines]
    assert result["metrics"]["truncated"]["mean"] == pytest.approx(sum(shares) / 7)


@pytest.mark.slow
def test_the_report_has_every_row_and_the_notes(script, runs, tmp_path):
    report = tmp_path / "table.md"
    argv = ["--agent", runs[0], "--baseline", runs[1], "--max_prompts", 8, "--best_of", 2, "--report", report]
    result = evaluated(script, tmp_path, *argv)
    lines = report.read_text(encoding="utf-8").splitlines()
    end = 2 + 3 + 2 + len(BASELINES)  # both agents, their difference, the best of two of each
    assert len({line.count("|") for line in lines[:end]}) == 1
    assert [line for line in lines[end:] if line] == result["settings"]["notes"]


def test_an_option_replaces_the_agents_own_sampling():
    own = Sampling(20, temperature=0.7, top_k=5, top_p=0.9)
    options = EvaluateOptions(agent="a", output="o", top_k=0, min_new_tokens=2, greedy=True)
    assert choose_sampling(options, own) == Sampling(20, 0.7, 0, 0.9, 2, True)


@pytest.mark.slow
def test_a_baseline_without_settings_is_prompted_as_the_agent_is(script, data, tmp_path):
    """A plain model folder with the agent's own weights differs by nothing, its perplexity included."""
    tiny.gpt2(seed=1).save_pretrained(tmp_path / "lm")
    tiny.byte_tokenizer().save_pretrained(tmp_path / "lm")
    short = save_run(tmp_path / "run", data, seed=1)
    (short / "rlhf_dialog.json").write_text('{"max_prompt_length": 40, "max_new_tokens": 9}', encoding="utf-8")
    argv = ["--agent", short, "--baseline", tmp_path / "lm", "--max_prompts", 6]
    difference = evaluated(script, tmp_path, *argv)["difference"]
    assert all(value == 0 for found in difference.values() for value in found.values())


@pytest.mark.slow
def test_two_agents_with_other_lengths_and_tokenizers(script, runs, data, tmp_path):
    """The longer responses of one fit into the other; what counts tokens is not compared."""
    other = save_run(tmp_path / "other", data, seed=2)
    tiny.byte_tokenizer(separator_token=False).save_pretrained(other)
    (other / "rlhf_dialog.json").write_text('{"max_new_tokens": 120}', encoding="utf-8")
    result = evaluated(script, tmp_path, "--agent", other, "--baseline", runs[0], "--max_prompts", 3)
    assert result["before"]["mean_length"]["mean"] > 9
    for name in ("mean_length", "reference_perplexity"):
        assert result["difference"][name] == {"mean": None, "low": None, "high": None}
    assert result["difference"]["mean_words"]["mean"] is not None


@pytest.mark.slow
def test_one_prompt_has_no_other(script, runs, tmp_path):
    samples = tmp_path / "s.json"
    result = evaluated(script, tmp_path, "--agent", runs[0], "--max_prompts", 1, "--samples", samples)
    assert set(result["baselines"]) == BASELINES - {"random_reference"}
    assert result["metrics"]["meteor_shuffled"]["mean"] is result["metrics"]["meteor_margin"]["mean"] is None
    assert len(json.loads(samples.read_text(encoding="utf-8"))) == 1


@pytest.mark.slow
def test_prompts_that_lack_something(script, tmp_path, capsys):
    """Without a reference and an act, lengths, distinct-n and copies are left."""
    (tmp_path / "validation.jsonl").write_text('{"prompt": "Tea ?", "reference": "No ."}\n{"prompt": "Why ?"}\n')
    lm, bare = save_plain(tmp_path / "lm"), tmp_path / "bare"
    evaluated(script, tmp_path, "--agent", lm, "--data_path", tmp_path)
    error = capsys.readouterr().err
    assert "1 of 2 prompts have no reference" in error
    assert "2 of 2 prompts have no act" in error
    bare.mkdir()
    for split in ("train", "validation"):
        (bare / f"{split}.jsonl").write_text('{"prompt": "Tea ?"}\n{"prompt": ["Hi .", "Hello ."]}\n')
    result = evaluated(script, tmp_path, "--agent", lm, "--data_path", bare)
    assert set(result["metrics"]) == COUNTS
    without = {"random_reference", "random_train_reply", "nearest_train_reply", "true_replies"}
    assert set(result["baselines"]) == BASELINES - without


@pytest.mark.slow
def test_an_agent_without_its_run_has_the_data_or_the_config_that_is_named(script, runs, data, tmp_path):
    lm, few = save_plain(tmp_path / "lm"), ["--max_prompts", 4]
    found = evaluated(script, tmp_path, "--agent", lm, "--config", runs[0].parent / "config.yaml", *few)
    assert (found["settings"]["data_path"], "score" in found["metrics"]) == (data, True)
    found = evaluated(script, tmp_path, "--agent", lm, "--data_path", data, *few)
    assert set(found["metrics"]) == COUNTS | OVERLAP | {"reference_perplexity"}
    assert found["settings"]["reward_class"] is None


def judged_run(folder, data, classifier):
    parts = [{"id": "Intent", "args": {"intent_model": classifier}}, LENGTH]
    return save_run(folder, data, 1, reward_class={"id": "CompositeReward", "args": {"parts": parts}})


@pytest.mark.slow
def test_a_classifier_by_option_and_one_of_the_reward(script, data, classifier, tmp_path):
    argv = ["--agent", judged_run(tmp_path, data, classifier), "--max_prompts", 8]
    expected = COUNTS | OVERLAP | ACTS | {"reference_perplexity"}
    gone = (tmp_path / "config.yaml").read_text(encoding="utf-8").replace(classifier, "./gone")
    (tmp_path / "gone.yaml").write_text(gone, encoding="utf-8")
    for options, names in {
        (): expected | RUN,
        ("--no_intent",): expected - ACTS,
        ("--intent_model", classifier, "--data_path", data): expected | RUN,
        ("--config", str(tmp_path / "gone.yaml"), "--intent_model", classifier): expected | RUN,
    }.items():
        result = evaluated(script, tmp_path, *argv, *options)
        assert set(result["metrics"]) == names, options
    share = sum(p.act == 1 for p in pick_prompts(load_prompts(data, "validation"), 8)) / 8
    assert result["baselines"]["always_inform"]["intent_accuracy"]["mean"] == share
    args = {"intent_model": "./gone", "intent_coef": 0, "meteor_wordnet": "off"}  # a coefficient of 0 loads none
    agent = save_run(tmp_path / "free", data, 1, reward_class={"id": "NLPReward", "args": args})
    assert "score" in evaluated(script, tmp_path, "--agent", agent, "--max_prompts", 4, "--no_intent")["metrics"]


@pytest.mark.slow
def test_a_reward_of_ones_own_is_registered_first(script, data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(RewardFactory, "classes", dict(RewardFactory.classes))
    (tmp_path / "mine.py").write_text(
        "from rlhf_dialog import BaseReward, RewardFactory\n"
        "@RewardFactory.register('Seven')\n"
        "class Seven(BaseReward):\n"
        "    def __call__(self, dialogues):\n"
        "        return [7.0] * len(dialogues)\n"
    )
    agent = save_run(tmp_path, data, 1, reward_class={"id": "Seven", "args": {}})
    argv = ["--agent", agent, "--max_prompts", 4]
    assert script.main(["--output", str(tmp_path / "e.json"), *map(str, argv)]) == 2
    assert "--register" in capsys.readouterr().err
    argv += ["--register", tmp_path / "mine.py"]  # its code is the user's, its arguments are not
    assert "score" not in evaluated(script, tmp_path, *argv)["metrics"]
    for trust in (["--trust_config"], ["--config", tmp_path / "config.yaml"]):
        assert evaluated(script, tmp_path, *argv, *trust)["metrics"]["score"]["mean"] == 7.0


@pytest.mark.slow
def test_the_score_has_the_truncation_penalty_of_the_run(script, data, tmp_path):
    found = {}
    for penalty in (0.0, 0.5):
        agent = save_run(tmp_path / str(penalty), data, 1, truncation_penalty=penalty)
        found[penalty] = evaluated(script, tmp_path, "--agent", agent, "--max_prompts", 8)
        assert found[penalty]["settings"]["truncation_penalty"] == penalty
    free, charged = (found[penalty]["metrics"] for penalty in (0.0, 0.5))
    assert free["truncated"]["mean"] > 0
    assert charged["score"]["mean"] == pytest.approx(free["score"]["mean"] - 0.5 * free["truncated"]["mean"])
    assert found[0.0]["baselines"] == found[0.5]["baselines"]  # they are not cut


@pytest.mark.slow
def test_a_judge_beside_the_classifier_of_the_reward(script, data, classifier, tmp_path):
    report = tmp_path / "table.md"
    argv = ["--agent", judged_run(tmp_path, data, classifier), "--report", report, "--max_prompts", 8]
    evaluated(script, tmp_path, *argv)
    assert "judged by the reward's own act classifier" in report.read_text(encoding="utf-8")
    for options in (["--no_intent"], []):
        result = evaluated(script, tmp_path, *argv, "--judge", classifier, *options)
        assert {name.replace("intent", "judge") for name in ACTS} <= set(result["metrics"])
        assert result["settings"]["judge"] == classifier
        text = report.read_text(encoding="utf-8")
        assert "is the same model as the reward's own act classifier" in text
        assert " judge_accuracy | judge_macro_f1 |" in text
        assert set(result["baselines"]["true_replies"]) == set(result["metrics"])
    assert all(result["metrics"][name.replace("intent", "judge")] == result["metrics"][name] for name in ACTS)


@pytest.mark.slow
def test_a_package_that_is_not_installed(script, runs, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "rouge_score", None)
    monkeypatch.setattr(
        "rlhf_dialog.models.chat_agent.ChatAgent.load", lambda *_, **__: pytest.fail("a model was loaded")
    )
    assert script.main(["--agent", str(runs[0]), "--output", str(tmp_path / "e.json")]) == 2
    assert "pip install rouge-score" in capsys.readouterr().err


def test_data_and_lengths_are_those_of_the_options_else_of_the_configuration_else_of_the_agent(tmp_path):
    agent: Any = SimpleNamespace(settings=SimpleNamespace(turn_separator="<sep>", context_size=4))
    asked = {"agent": str(tmp_path / "agent"), "output": tmp_path / "o.json"}
    assert read_task(EvaluateOptions(**asked, data_path="x"), agent) == Task("x", 4, 1, "<sep>")
    with pytest.raises(UserError, match=r"--config.*--data_path"):
        read_task(EvaluateOptions(**asked), agent)
    keys = "data_path: d}}\ncontext_size: 3\nmin_context_size: 2\ndrop_overlap: true"
    (tmp_path / "config.yaml").write_text(SMALL.replace("data_path: d}}", keys))
    for options, data, least in (({}, "d", 2), ({"data_path": "x", "min_context_size": 1}, "x", 1)):
        task = read_task(EvaluateOptions(**asked, **options, trust_config=True), agent)
        assert (task.data_path, task.context_size, task.min_context_size) == (data, 3, least)
        assert (task.turn_separator, task.drop_overlap) == ("<sep>", True)
