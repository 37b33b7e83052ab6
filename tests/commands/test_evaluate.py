"""What is measured of replies, replies without a model, judges and metrics of one's own, and the files of scripts/evaluate.py."""

import json
import math
import shutil
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_dialog.commands import evaluate
from rlhf_dialog.commands.evaluate import EvaluateOptions, Task, choose_sampling, read_task
from rlhf_dialog.commands.evaluate_options import (
    folders_beside,
    judge_folder,
    load_baseline,
    relevance_folders,
    reward_judges,
)
from rlhf_dialog.config.loading import load_config
from rlhf_dialog.config.registry import MetricFactory, RewardFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.prompts import PromptRules
from rlhf_dialog.errors import MissingSplit, UserError
from rlhf_dialog.evaluation.untrusted import RunConfig
from rlhf_dialog.models.chat_agent import AgentSettings
from rlhf_dialog.models.generation import Sampling
from rlhf_dialog.rewards import Intent
from rlhf_dialog.rewards.reward_model import RewardModel
from tests.metrics.test_evaluate_modules import write as write_module
from tests.parts import tiny
from tests.parts.evaluations import BASELINES, COUNTS, OVERLAP, evaluated, save_plain, save_run
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
def test_modules_of_the_evaluate_library_are_rows_and_columns(script, runs, tmp_path, capsys):
    word = write_module(tmp_path, '{"each": lengths, "mean": sum(lengths) / len(lengths)}')
    words = ("--agent", runs[0], "--baseline", runs[1], "--max_prompts", 6, "--metric", word, "--draws", 2)
    result = evaluated(script, tmp_path, *words, "--report", tmp_path / "report.md")
    for row in (result["after"], *result["baselines"].values()):
        assert row["lengths/each"]["mean"] == pytest.approx(row["lengths/mean"]["mean"])
        assert (row["lengths/each"]["low"] is None, row["lengths/mean"]["low"]) == (False, None)
    assert result["difference"]["lengths/mean"]["high"] is None
    assert result["settings"]["own_metrics"] == ["lengths/each", "lengths/mean"]
    assert result["settings"]["metrics"] == [word]
    assert "one number for all replies: lengths/mean." in (tmp_path / "report.md").read_text()
    assert "lengths/mean" in capsys.readouterr().out


def test_a_metric_of_the_hub_is_refused_before_anything_is_loaded(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(evaluate.agent_options, "load_agent", lambda *_: pytest.fail("an agent was loaded"))
    words = ["--agent", str(runs[0]), "--output", str(tmp_path / "e.json"), "--metric", "some/metric:key"]
    assert evaluate.main(words) == 2
    assert "--metric: 'some/metric:key': is a name of the Hub" in capsys.readouterr().err
    assert not (tmp_path / "e.json").exists()


@pytest.mark.slow
def test_a_found_configuration_runs_no_module(script, data, tmp_path):
    word = write_module(tmp_path, "1 / 0", columns="open('ran', 'w')")
    info = {"id": "EvaluateInfo", "args": {"modules": [word, "some/metric"], "trust_remote_code": True}}
    agent = save_run(tmp_path / "run", data, seed=1, vec_info_class=info)
    result = evaluated(script, tmp_path, "--agent", agent, "--max_prompts", 4)
    assert not [name for name in result["metrics"] if "lengths" in name]


@pytest.mark.slow
def test_the_folder_of_a_run_is_evaluated_as_that_of_its_agent(script, runs, tmp_path):
    run = str(runs[0]).removesuffix("/agent")
    words = ("--max_prompts", 4, "--no_intent")
    results = [
        evaluated(script, tmp_path, "--agent", folder, "--baseline", folder, *words) for folder in (runs[0], run)
    ]
    assert results[0]["settings"]["agent_hash"] is not None
    assert [one["after"] for one in results[1:]] == [results[0]["after"]]
    assert results[1]["settings"]["agent_hash"] == results[0]["settings"]["agent_hash"]


@pytest.mark.slow
def test_two_agents_on_the_same_prompts(script, runs, tmp_path):
    few, replies = ["--max_prompts", 9, "--draws", 2], tmp_path / "replies.jsonl"
    both = ["--agent", runs[0], "--baseline", runs[1], "--beside", f"again={runs[0]}"]
    result = evaluated(script, tmp_path, *both, *few, "--best_of", 2, "--replies", replies)
    names = {"before", "after", "difference", "baselines", "local_names", "settings", "sweep", "sweep_difference"}
    assert set(result) == names
    best = {f"{name}, best of 2 (reads the reference)" for name in ("before", "after")}
    assert set(result["sweep"]) == set(result["sweep_difference"]) == {"again", *best}
    assert "after, draw 2" in json.loads(replies.read_text().splitlines()[0])["replies"]
    assert result["sweep"]["again"] == result["after"]  # the same agent, prompts and seed
    assert result["sweep_difference"]["again"]["score"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    for name in ("before", "after", "difference"):
        check_metrics(result[name])
    for name, found in result["difference"].items():
        expected = result["after"][name]["mean"] - result["before"][name]["mean"]
        assert found["mean"] == pytest.approx(expected, abs=1e-12)
    assert [result["settings"][name] for name in ("num_prompts", "draws", "best_of")] == [9, 2, 2]
    assert evaluated(script, tmp_path, "--agent", runs[0], *few)["metrics"] == result["after"]
    config = runs[1].parent / "config.yaml"
    assert evaluated(script, tmp_path, "--agent", runs[1], "--config", config, *few)["metrics"] == result["before"]
    other = evaluated(script, tmp_path, "--agent", runs[0], *few, "--seed", 4)
    assert other["metrics"] != result["after"]


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
def test_an_agent_without_its_run_has_the_data_or_the_config_that_is_named(script, runs, data, tmp_path):
    lm, few = save_plain(tmp_path / "lm"), ["--max_prompts", 4]
    found = evaluated(script, tmp_path, "--agent", lm, "--config", runs[0].parent / "config.yaml", *few)
    assert (found["settings"]["data_path"], "score" in found["metrics"]) == (data, True)
    found = evaluated(script, tmp_path, "--agent", lm, "--data_path", data, *few)
    assert set(found["metrics"]) == COUNTS | OVERLAP | {"reference_perplexity"}
    assert found["settings"]["reward_class"] is None


def options_with(**keys) -> EvaluateOptions:
    return EvaluateOptions(**{"agent": "absent", "output": "e.json", "device": "cpu"} | keys)


def task_of(folder, reward, **keys) -> Task:
    save_run(folder, keys.pop("data", "d"), 1, reward_class=reward, **keys)
    path = folder / "config.yaml"
    return Task("d", PromptRules(), RunConfig(load_config(path), path, trusted=True))


def test_the_judges_are_the_runs_reward_unless_an_option_names_others(classifier, tmp_path, monkeypatch):
    monkeypatch.setattr(MetricFactory, "classes", {"questions": lambda some: ["?" in one.response for one in some]})
    keys = {"truncation_penalty": 0.5, "on_reward_error": "skip", "reward_timeout_s": 9.0}
    task = task_of(tmp_path / "length", {"id": "LengthMatch"}, **keys)
    judges = evaluate.build_judges(options_with(legacy_eou=True, seed=7, judge=("CopyPrice",)), task)
    assert (judges.scorer.reward.name, judges.scorer.truncation_penalty) == ("length_match", 0.5)
    assert (judges.scorer.skip_unscored, judges.scorer.timeout_s) == (True, 9.0)
    assert (judges.intent, judges.legacy_eou, judges.seed) == (None, True, 7)
    assert list(judges.user_judges) == ["judge_copy_price", "questions"]
    assert judges.user_judges["questions"]([Dialogue(["a"], "why ?"), Dialogue(["a"], "so .")]) == [True, False]
    named = evaluate.build_judges(options_with(intent_model=classifier), task)
    assert (named.intent.precision, named.scorer is None) == ("fp32", False)
    judged = evaluate.build_judges(options_with(judge=(classifier,)), task)
    assert (judged.judge.precision, judged.intent) == ("fp32", None)
    args = {"intent_model": "./gone", "intent_coef": 0, "meteor_wordnet": "off"}  # a coefficient of 0 loads none
    free = task_of(tmp_path / "free", {"id": "NLPReward", "args": args})
    assert evaluate.build_judges(options_with(no_intent=True), free).scorer is not None
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


def test_the_modules_of_the_options_are_run_before_a_reply_is_drawn_each_once(tmp_path, monkeypatch):
    loaded = []
    features = {"predictions": None}
    fake = SimpleNamespace(
        load=lambda source, keep_in_memory: loaded.append(source) or SimpleNamespace(features=features)
    )
    monkeypatch.setitem(sys.modules, "evaluate", fake)
    task = task_of(tmp_path / "length", {"id": "LengthMatch"})
    options = options_with(metric=("some/one", "two", "some/one"), trust_remote_code=True)
    judges = evaluate.build_judges(options, task)
    assert loaded == [module.source for module in judges.modules] == ["some/one", "two"]
    assert evaluate.record_settings(options, task, Sampling(3), judges, PROMPTS)["metrics"] == [*options.metric]
    assert "metrics" not in evaluate.record_settings(options_with(), task, Sampling(3), judges, PROMPTS)
    with pytest.raises(UserError, match="name of the Hub"):
        evaluate.build_judges(options_with(metric=("some/one",)), task)


PROMPTS = [Dialogue(["a"], reference="b", meta={"dialogue": i // 2, "index": i}) for i in range(3)]


def test_held_out_prompts_are_of_the_split_and_what_they_lack_is_said(data, tmp_path, caplog):
    task = Task(data, PromptRules(min_context_size=3))
    wanted = [one.prompt_turns for one in PromptRules().load(data, "test") if len(one.prompt_turns) >= 3]
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
    assert [judge.in_float32() for judge in judges] == [*judges]
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
def test_judges_of_ones_own_and_relevance_models_judge_every_system(script, runs, own, prompts, tmp_path):
    report, replies = tmp_path / "table.md", tmp_path / "new" / "replies.jsonl"
    first, second = save_letters(tmp_path / "first"), save_letters(tmp_path / "second", "convolution", seed=1)
    argv = ["--agent", runs[0], "--register", own, "--max_prompts", 6, "--report", report, "--replies", replies]
    argv += ["--relevance_model", first, "--relevance_model", second]
    result = evaluated(script, tmp_path, *argv, "--judge", "Letters", "--judge", "{id: Letters, args: {times: 3}}")
    lines = [json.loads(line) for line in replies.read_text(encoding="utf-8").splitlines()]
    assert [line["prompt"] for line in lines] == [prompts[line["index"]].prompt_turns for line in lines]
    shares = [line["replies"]["metrics"]["truncated"] for line in lines]
    assert result["metrics"]["truncated"]["mean"] == pytest.approx(sum(shares) / 6)
    relevance = ("relevance", "relevance_2")
    for name, metrics in {"metrics": result["metrics"], **result["baselines"]}.items():
        words = sum(len(line["replies"][name]["response"].split()) for line in lines)
        assert metrics["mean_words"]["mean"] == pytest.approx(words / 6), name
        letters = sum(len(line["replies"][name]["response"]) for line in lines) / 6
        assert metrics["judge_letters"]["mean"] == pytest.approx(letters)
        assert metrics["judge_letters_2"]["mean"] == pytest.approx(3 * letters)
        assert metrics["turns"]["mean"] == pytest.approx(sum(len(line["prompt"]) for line in lines) / 6)
        assert all(0 <= metrics[f"{one}_r1"]["mean"] <= metrics[f"{one}_r10"]["mean"] <= 1 for one in relevance)
    assert "| judge_letters | judge_letters_2 | turns |" in report.read_text(encoding="utf-8")
    assert result["settings"]["judge"] is None
    assert result["settings"]["relevance_models"] == dict(zip(relevance, (first, second), strict=True))


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
