"""What is measured of replies, replies without a model, judges and metrics of one's own, and the files of scripts/evaluate.py."""

import json
import math
import shutil
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_dialog.commands import evaluate
from rlhf_dialog.commands.evaluate import EvaluateOptions, Task, choose_sampling, read_task
from rlhf_dialog.commands.evaluate_options import (
    OwnMetric,
    folders_beside,
    judge_folder,
    load_baseline,
    place_judge,
    relevance_folders,
    reward_judges,
)
from rlhf_dialog.config.loading import load_config
from rlhf_dialog.config.registry import MetricFactory, RewardFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.prompts import PromptRules, load_prompts
from rlhf_dialog.errors import MissingSplit, UserError
from rlhf_dialog.evaluation.replies import pick_prompts
from rlhf_dialog.evaluation.untrusted import RunConfig
from rlhf_dialog.models.chat_agent import AgentSettings
from rlhf_dialog.models.generation import Sampling
from rlhf_dialog.rewards import Intent
from rlhf_dialog.rewards.reward_model import RewardModel
from rlhf_dialog.rewards.scoring import Scorer
from tests.parts import tiny
from tests.parts.evaluations import ACTS, BASELINES, COUNTS, LENGTH, OVERLAP, evaluated, save_plain, save_run
from tests.parts.relevance_models import save_letters
from tests.parts.scalars import save_scalar
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
def test_two_agents_on_the_same_prompts(script, runs, tmp_path):
    few = ["--max_prompts", 9]
    both = ["--agent", runs[0], "--baseline", runs[1], "--beside", f"again={runs[0]}"]
    result = evaluated(script, tmp_path, *both, *few)
    names = {"before", "after", "difference", "baselines", "local_names", "settings", "sweep", "sweep_difference"}
    assert set(result) == names
    assert result["sweep"]["again"] == result["after"]  # the same agent, prompts and seed
    assert result["sweep_difference"]["again"]["score"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
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
    result = evaluated(script, tmp_path, "--agent", runs[0], "--max_prompts", 1)
    assert set(result["baselines"]) == BASELINES - {"random_reference"}
    assert result["metrics"]["meteor_shuffled"]["mean"] is result["metrics"]["meteor_margin"]["mean"] is None


@pytest.mark.slow
def test_prompts_that_lack_something(script, tmp_path):
    lm, bare = save_plain(tmp_path / "lm"), tmp_path / "bare"
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


def options_with(**keys) -> EvaluateOptions:
    return EvaluateOptions(**{"agent": "absent", "output": "e.json", "device": "cpu"} | keys)


def task_of(folder, reward, **keys) -> Task:
    save_run(folder, keys.pop("data", "d"), 1, reward_class=reward, **keys)
    path = folder / "config.yaml"
    return Task("d", PromptRules(), RunConfig(load_config(path), path, trusted=True))


def test_the_judges_are_the_runs_reward_unless_an_option_names_others(classifier, tmp_path):
    keys = {"truncation_penalty": 0.5, "on_reward_error": "skip", "reward_timeout_s": 9.0}
    task = task_of(tmp_path / "length", {"id": "LengthMatch"}, **keys)
    judges = evaluate.build_judges(options_with(legacy_eou=True, seed=7, judge=("CopyPrice",)), task)
    assert (judges.scorer.reward.name, judges.scorer.truncation_penalty) == ("length_match", 0.5)
    assert (judges.scorer.skip_unscored, judges.scorer.timeout_s) == (True, 9.0)
    assert (judges.intent, judges.legacy_eou, judges.seed) == (None, True, 7)
    assert list(judges.user_judges) == ["judge_copy_price"]
    named = evaluate.build_judges(options_with(intent_model=classifier), task)
    assert (named.intent.precision, named.scorer is None) == ("fp32", False)
    acts = task_of(tmp_path / "acts", {"id": "Intent", "args": {"intent_model": "gone"}})
    assert evaluate.build_judges(options_with(no_intent=True), acts).scorer is None
    own = evaluate.build_judges(options_with(intent_model=classifier), acts)
    assert own.intent is own.scorer.reward
    assert own.intent.precision == "fp32"  # so that a table does not depend on the processor
    options = options_with(intent_model=classifier, split="test")
    settings = evaluate.record_settings(options, acts, Sampling(3), own, PROMPTS)
    wanted = {"agent_hash": None, "split": "test", "num_prompts": 3, "num_dialogues": 2, "best_of": None}
    wanted |= {"intent_model": classifier, "reward_class": acts.run.config.reward_class.model_dump(), "seed": 0}
    wanted |= {"truncation_penalty": 0, "context_size": 5, "min_context_size": 1, "judge": None, "judges": []}
    assert {key: settings[key] for key in wanted} == wanted
    assert "draws" not in settings


PROMPTS = [Dialogue(["a"], reference="b", meta={"dialogue": i // 2, "index": i}) for i in range(3)]


def test_held_out_prompts_are_of_the_split_and_what_they_lack_is_said(data, tmp_path, caplog):
    task = Task(data, PromptRules(min_context_size=3))
    wanted = [one.prompt_turns for one in load_prompts(data, "test") if len(one.prompt_turns) >= 3]
    found = evaluate.held_out_prompts(task, options_with(split="test"))
    assert [one.prompt_turns for one in found] == wanted
    assert len(evaluate.held_out_prompts(task, options_with(max_prompts=2))) == 2
    assert "prompts have no" not in caplog.text
    (tmp_path / "test.jsonl").write_text('{"prompt": "Tea | now ?", "reference": "No ."}\n{"prompt": "Why ?"}\n')
    task = Task(str(tmp_path), PromptRules(turn_separator="|"))
    assert evaluate.held_out_prompts(task, options_with(split="test"))[0].prompt_turns == ["Tea now ?"]
    assert "1 of 2 prompts have no reference" in caplog.text
    assert "2 of 2 prompts have no act" in caplog.text
    with pytest.raises(MissingSplit, match="--split test, or"):
        evaluate.held_out_prompts(task, options_with())


def test_the_models_of_a_judge_are_in_float32(classifier, tmp_path):
    judges = Intent(classifier), RewardModel(str(save_scalar(tmp_path / "scalar")))
    assert [place_judge(judge, "cpu") for judge in judges] == [*judges]
    assert (judges[0].precision, judges[1].scalar.options.precision) == ("fp32", "fp32")


def test_a_baseline_has_lengths_of_its_own_but_the_responses_of_the_agent(runs, tmp_path):
    other = shutil.copytree(runs[1], tmp_path / "other")
    (other / "rlhf_dialog.json").write_text('{"max_prompt_length": 40, "max_new_tokens": 2}', encoding="utf-8")
    agent: Any = SimpleNamespace(settings=AgentSettings(max_new_tokens=7, max_prompt_length=30, precision="bf16"))
    found = load_baseline(options_with(), agent, str(other)).settings
    assert (found.max_prompt_length, found.max_new_tokens, found.precision) == (40, 7, "bf16")


def test_data_and_lengths_are_those_of_the_options_else_of_the_configuration_else_of_the_agent(tmp_path):
    agent: Any = SimpleNamespace(settings=SimpleNamespace(turn_separator="<sep>", context_size=4))
    asked = {"agent": str(tmp_path / "agent"), "output": tmp_path / "o.json"}
    assert read_task(EvaluateOptions(**asked, data_path="x"), agent) == Task(
        "x", PromptRules(4, turn_separator="<sep>")
    )
    with pytest.raises(UserError, match=r"--config.*--data_path"):
        read_task(EvaluateOptions(**asked), agent)
    keys = "data_path: d}}\ncontext_size: 3\nmin_context_size: 2\ndrop_overlap: true"
    (tmp_path / "config.yaml").write_text(SMALL.replace("data_path: d}}", keys))
    for options, data, least in (({}, "d", 2), ({"data_path": "x", "min_context_size": 1}, "x", 1)):
        task = read_task(EvaluateOptions(**asked, **options, trust_config=True), agent)
        assert (task.data_path, task.rules) == (data, PromptRules(3, least, True, "<sep>"))


OWN = """
from rlhf_dialog import BaseReward, RewardFactory
from rlhf_dialog.config.registry import MetricFactory

@RewardFactory.register("Letters")
class Letters(BaseReward):
    name = "letters"
    def __init__(self, times=1):
        self.times = times
    def __call__(self, dialogues):
        return [float(self.times * len(d.response)) for d in dialogues]

@MetricFactory.register("turns")
def turns(dialogues):
    return [len(d.prompt_turns) for d in dialogues]
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.setattr(RewardFactory, "classes", dict(RewardFactory.classes))
    monkeypatch.setattr(MetricFactory, "classes", {})
    path = tmp_path / "own.py"
    path.write_text(OWN, encoding="utf-8")
    return str(path)


@pytest.mark.slow
def test_a_reward_and_a_metric_of_ones_own_judge_every_system(script, runs, own, prompts, tmp_path):
    report, replies = tmp_path / "table.md", tmp_path / "new" / "replies.jsonl"
    argv = ["--agent", runs[0], "--register", own, "--max_prompts", 6, "--report", report, "--replies", replies]
    result = evaluated(script, tmp_path, *argv, "--judge", "Letters", "--judge", "{id: Letters, args: {times: 3}}")
    lines = [json.loads(line) for line in replies.read_text(encoding="utf-8").splitlines()]
    assert [line["prompt"] for line in lines] == [prompts[line["index"]].prompt_turns for line in lines]
    shares = [line["replies"]["metrics"]["truncated"] for line in lines]
    assert result["metrics"]["truncated"]["mean"] == pytest.approx(sum(shares) / 6)
    for name, metrics in {"metrics": result["metrics"], **result["baselines"]}.items():
        words = sum(len(line["replies"][name]["response"].split()) for line in lines)
        assert metrics["mean_words"]["mean"] == pytest.approx(words / 6), name
        letters = sum(len(line["replies"][name]["response"]) for line in lines) / 6
        assert metrics["judge_letters"]["mean"] == pytest.approx(letters)
        assert metrics["judge_letters_2"]["mean"] == pytest.approx(3 * letters)
        assert metrics["turns"]["mean"] == pytest.approx(sum(len(line["prompt"]) for line in lines) / 6)
    assert "| judge_letters | judge_letters_2 | turns |" in report.read_text(encoding="utf-8")
    assert result["settings"]["judge"] is None


@pytest.mark.slow
def test_relevance_models_judge_every_system(script, runs, tmp_path):
    first, second = save_letters(tmp_path / "first"), save_letters(tmp_path / "second", "convolution", seed=1)
    argv = ["--agent", runs[0], "--baseline", runs[1], "--max_prompts", 12]
    result = evaluated(script, tmp_path, *argv, "--relevance_model", first, "--relevance_model", second)
    names = ["relevance_r1", "relevance_r10", "relevance_2_r1", "relevance_2_r10"]
    assert result["settings"]["own_metrics"] == names
    assert result["settings"]["relevance_models"] == {"relevance": first, "relevance_2": second}
    for metrics in (result["before"], result["after"], *result["baselines"].values()):
        assert all(0 <= metrics[name]["mean"] <= 1 for name in names)
        assert metrics["relevance_r1"]["mean"] <= metrics["relevance_r10"]["mean"]
    assert set(names) <= set(result["difference"])


@pytest.mark.slow
def test_the_best_of_several_replies_by_the_reward(script, runs, tmp_path):
    argv = ["--agent", runs[0], "--max_prompts", 8]
    one, three = (evaluated(script, tmp_path, *argv, "--best_of", n) for n in (1, 3))
    first, best = (f"metrics, best of {n} (reads the reference)" for n in (1, 3))
    assert one["sweep"][first]["score"] == one["metrics"]["score"]
    assert set(three["sweep"]) == set(three["sweep_difference"]) == {best}
    assert three["sweep"][best]["score"]["mean"] > three["metrics"]["score"]["mean"]
    assert three["settings"]["best_of"] == 3


@pytest.mark.slow
def test_the_mean_of_several_draws_counts(script, runs, tmp_path):
    """Each draw is what an evaluation with the next seed draws."""
    argv = ["--agent", runs[0], "--max_prompts", 8]
    one, other = (evaluated(script, tmp_path, *argv, "--seed", seed)["metrics"] for seed in (0, 1))
    replies = tmp_path / "replies.jsonl"
    both = evaluated(script, tmp_path, *argv, "--draws", 2, "--replies", replies)
    for name in ("mean_words", "distinct_2", "meteor"):
        assert both["metrics"][name]["mean"] == pytest.approx((one[name]["mean"] + other[name]["mean"]) / 2)
    assert both["metrics"]["reference_perplexity"]["mean"] == pytest.approx(one["reference_perplexity"]["mean"])
    assert both["settings"]["draws"] == 2
    first = json.loads(replies.read_text().splitlines()[0])["replies"]
    assert {"metrics", "metrics, draw 2"} <= set(first)


DIALOGUES = [Dialogue(["a"], "why ?"), Dialogue(["a"], "so .")]


def test_a_function_is_asked_for_one_number_each():
    metric = OwnMetric("questions", lambda dialogues: [float("?" in dialogue.response) for dialogue in dialogues])
    assert Scorer(metric).score(DIALOGUES).total == [1.0, 0.0]


def test_the_name_of_a_row_is_given_or_that_of_the_run():
    beside = ("seed 1=runs/x/agent", "runs/y/agent", "models/z")
    names = {"seed 1": "runs/x/agent", "y": "runs/y/agent", "z": "models/z"}
    assert folders_beside(EvaluateOptions(agent="a", output="o", beside=beside)) == names


def test_judges_have_names_of_their_own():
    judges = ("LengthMatch", "folder", "{id: LengthMatch, args: {}}")
    options = EvaluateOptions(agent="a", output="o", judge=judges, relevance_model=("x", "y"))
    assert judge_folder(options) == "folder"
    assert relevance_folders(options) == {"relevance": "x", "relevance_2": "y"}
    assert list(reward_judges(judges, "cpu")) == ["judge_length_match", "judge_length_match_2"]
