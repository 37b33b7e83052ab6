"""What is measured of replies, replies without a model, and the JSON of scripts/evaluate.py."""

import json
import math
import shlex
import sys

import pytest

from rlhf_dialog.commands import evaluate
from rlhf_dialog.commands.evaluate import EvaluateOptions, choose_sampling
from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.data.prompts import load_prompts
from rlhf_dialog.evaluation.replies import pick_prompts
from rlhf_dialog.models.generation import Sampling
from tests.parts import tiny
from tests.parts.evaluations import ACTS, BASELINES, COUNTS, LENGTH, OVERLAP, evaluated, save_plain, save_run

pytestmark = pytest.mark.slow

RUN = {"score", "length_match", "reference_perplexity"}


# the script


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


def test_one_agent(script, runs, prompts, tmp_path, capsys):
    output = tmp_path / "deep" / "evaluation.json"
    assert script.main(["--agent", str(runs[0]), "--output", str(output), "--batch_size", "16"]) == 0
    result = json.loads(output.read_text(encoding="utf-8"))
    assert set(result) == {"metrics", "baselines", "local_names", "settings"}
    check_metrics(result["metrics"])
    assert set(result["baselines"]) == BASELINES
    for metrics in result["baselines"].values():
        check_metrics(metrics, with_model=False)
    assert result["metrics"]["mean_length"]["mean"] <= 9
    score = result["metrics"]["meteor"]["mean"] + 0.5 * result["metrics"]["length_match"]["mean"]
    assert result["metrics"]["score"]["mean"] == pytest.approx(score)
    assert result["settings"]["num_prompts"] == len(prompts)
    assert result["settings"]["sampling"]["max_new_tokens"] == 9
    assert result["settings"]["meteor"] == "meteor_exact_stem"
    assert "true_replies" in capsys.readouterr().out


def test_the_separator_of_the_agent_is_replaced_in_the_data(tmp_path):
    (tmp_path / "test.jsonl").write_text('{"dialog": ["a | b", "c"]}\n', encoding="utf-8")
    (prompt,) = evaluate.Task(str(tmp_path), 5, 1, "|").prompts("test")
    assert prompt.prompt_turns == ["a b"]


def test_two_agents_on_the_same_prompts(script, runs, tmp_path):
    output = tmp_path / "e.json"
    trained, start = map(str, runs)
    assert script.main(["--agent", trained, "--baseline", start, "--output", str(output), "--max_prompts", "9"]) == 0
    result = json.loads(output.read_text(encoding="utf-8"))
    assert set(result) == {"before", "after", "difference", "baselines", "local_names", "settings"}
    for name in ("before", "after", "difference"):
        check_metrics(result[name])
    for name, found in result["difference"].items():
        expected = result["after"][name]["mean"] - result["before"][name]["mean"]
        assert found["mean"] == pytest.approx(expected, abs=1e-12)
    assert result["settings"]["num_prompts"] == 9
    alone = tmp_path / "alone.json"
    assert script.main(["--agent", trained, "--output", str(alone), "--max_prompts", "9"]) == 0
    assert json.loads(alone.read_text(encoding="utf-8"))["metrics"] == result["after"]
    config = str(runs[1].parent / "config.yaml")
    assert script.main(["--agent", start, "--config", config, "--output", str(alone), "--max_prompts", "9"]) == 0
    assert json.loads(alone.read_text(encoding="utf-8"))["metrics"] == result["before"]


def test_the_replies_are_those_that_were_measured(script, runs, prompts, tmp_path):
    """Lengths, copies and act shares recomputed from the file alone."""
    output, replies = tmp_path / "e.json", tmp_path / "new" / "replies.jsonl"
    argv = ["--agent", str(runs[0]), "--output", str(output), "--replies", str(replies), "--max_prompts", "7"]
    assert script.main(argv) == 0
    result = json.loads(output.read_text(encoding="utf-8"))
    lines = [json.loads(line) for line in replies.read_text(encoding="utf-8").splitlines()]
    assert [line["prompt"] for line in lines] == [prompts[line["index"]].prompt_turns for line in lines]
    systems = {"metrics": result["metrics"], **result["baselines"]}
    for name, metrics in systems.items():
        texts = [line["replies"][name]["response"] for line in lines]
        assert metrics["mean_words"]["mean"] == pytest.approx(sum(len(text.split()) for text in texts) / 7), name
    shares = [line["replies"]["metrics"]["truncated"] for line in lines]
    assert result["metrics"]["truncated"]["mean"] == pytest.approx(sum(shares) / 7)


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


def test_a_baseline_without_settings_is_prompted_as_the_agent_is(script, data, tmp_path):
    """A plain model folder with the agent's own weights differs by nothing, its perplexity included."""
    tiny.gpt2(seed=1).save_pretrained(tmp_path / "lm")
    tiny.byte_tokenizer().save_pretrained(tmp_path / "lm")
    short = save_run(tmp_path / "run", data, seed=1)
    (short / "rlhf_dialog.json").write_text('{"max_prompt_length": 40, "max_new_tokens": 9}', encoding="utf-8")
    output = tmp_path / "e.json"
    argv = ["--agent", str(short), "--baseline", str(tmp_path / "lm"), "--output", str(output), "--max_prompts", "6"]
    assert script.main(argv) == 0
    difference = json.loads(output.read_text(encoding="utf-8"))["difference"]
    assert all(value == 0 for found in difference.values() for value in found.values())


def test_the_seed_decides_the_whole_file(script, runs, tmp_path):
    texts = []
    for name, seed in (("a", "3"), ("b", "3"), ("c", "4")):
        output = tmp_path / f"{name}.json"
        assert (
            script.main(["--agent", str(runs[0]), "--output", str(output), "--seed", seed, "--max_prompts", "8"]) == 0
        )
        texts.append(output.read_text(encoding="utf-8"))
    assert texts[0] == texts[1] != texts[2]


def test_sampling_options_are_used_and_written(script, runs, tmp_path):
    output = tmp_path / "e.json"
    options = shlex.split("--temperature 0.5 --top_k 20 --top_p 0.9 --min_new_tokens 4 --min_context_size 3")
    assert script.main(["--agent", str(runs[0]), "--output", str(output), "--max_prompts", "6", *options]) == 0
    result = json.loads(output.read_text(encoding="utf-8"))
    lengths = {"min_new_tokens": 4, "max_new_tokens": 9}
    assert result["settings"]["sampling"] == lengths | {"temperature": 0.5, "top_k": 20, "top_p": 0.9, "greedy": False}
    assert result["settings"]["min_context_size"] == 3
    assert result["metrics"]["mean_length"]["mean"] >= 4


def test_two_agents_with_other_lengths_and_tokenizers(script, runs, data, tmp_path):
    """The longer responses of one fit into the other; what counts tokens is not compared."""
    other = save_run(tmp_path / "other", data, seed=2)
    tiny.byte_tokenizer(separator_token=False).save_pretrained(other)
    (other / "rlhf_dialog.json").write_text('{"max_new_tokens": 120}', encoding="utf-8")
    output = tmp_path / "e.json"
    argv = ["--agent", str(other), "--baseline", str(runs[0]), "--output", str(output), "--max_prompts", "3"]
    assert script.main(argv) == 0
    result = json.loads(output.read_text(encoding="utf-8"))
    assert result["before"]["mean_length"]["mean"] > 9
    for name in ("mean_length", "reference_perplexity"):
        assert result["difference"][name] == {"mean": None, "low": None, "high": None}
    assert result["difference"]["mean_words"]["mean"] is not None


def test_one_prompt_has_no_other(script, runs, tmp_path, capsys):
    output, samples = tmp_path / "e.json", tmp_path / "s.json"
    argv = ["--agent", str(runs[0]), "--output", str(output), "--max_prompts", "1", "--samples", str(samples)]
    assert script.main(argv) == 0
    result = json.loads(output.read_text(encoding="utf-8"))
    assert set(result["baselines"]) == BASELINES - {"random_reference"}
    assert result["metrics"]["meteor_shuffled"]["mean"] is result["metrics"]["meteor_margin"]["mean"] is None
    assert len(json.loads(samples.read_text(encoding="utf-8"))) == 1


def test_prompts_that_lack_something_are_told(script, runs, tmp_path, capsys):
    (tmp_path / "validation.jsonl").write_text('{"prompt": "Tea ?", "reference": "No ."}\n{"prompt": "Why ?"}\n')
    argv = ["--agent", str(runs[0]), "--output", str(tmp_path / "e.json"), "--data_path", str(tmp_path)]
    lm = save_plain(tmp_path / "lm")
    assert script.main(["--agent", lm, *argv[2:]]) == 0
    error = capsys.readouterr().err
    assert "1 of 2 prompts have no reference" in error
    assert "2 of 2 prompts have no act" in error
    (tmp_path / "validation.jsonl").rename(tmp_path / "prompts.jsonl")
    assert script.main(["--agent", lm, *argv[2:4], "--data_path", str(tmp_path / "prompts.jsonl")]) == 2
    assert "there is no validation split" in (error := capsys.readouterr().err) or "has no validation split" in error
    assert "measure another split: --split test, or --split train" in error


def test_an_agent_without_its_run_needs_data_or_a_config(script, runs, tmp_path, capsys):
    tiny.gpt2().save_pretrained(tmp_path / "lm")
    tiny.byte_tokenizer().save_pretrained(tmp_path / "lm")
    argv = ["--agent", str(tmp_path / "lm"), "--output", str(tmp_path / "e.json"), "--max_prompts", "4"]
    assert script.main(argv) == 2
    error = capsys.readouterr().err
    assert "--config" in error
    assert "--data_path" in error
    assert script.main([*argv, "--config", str(runs[0].parent / "config.yaml")]) == 0
    data = json.loads((tmp_path / "e.json").read_text(encoding="utf-8"))["settings"]["data_path"]
    assert script.main([*argv, "--data_path", data]) == 0
    found = json.loads((tmp_path / "e.json").read_text(encoding="utf-8"))
    assert set(found["metrics"]) == COUNTS | OVERLAP | {"reference_perplexity"}
    assert found["settings"]["reward_class"] is None


def test_a_classifier_by_option_and_one_of_the_reward(script, data, classifier, tmp_path):
    parts = [{"id": "Intent", "args": {"intent_model": classifier}}, LENGTH]
    agent = save_run(tmp_path, data, 1, reward_class={"id": "CompositeReward", "args": {"parts": parts}})
    output = tmp_path / "e.json"
    argv = ["--agent", str(agent), "--output", str(output), "--max_prompts", "8"]
    expected = COUNTS | OVERLAP | ACTS | {"reference_perplexity"}
    runs = {(): expected | RUN, ("--no_intent",): expected - ACTS}
    runs["--intent_model", classifier, "--data_path", data] = expected | RUN
    gone = (tmp_path / "config.yaml").read_text(encoding="utf-8").replace(classifier, "./gone")
    (tmp_path / "gone.yaml").write_text(gone, encoding="utf-8")
    runs["--config", str(tmp_path / "gone.yaml"), "--intent_model", classifier] = expected | RUN
    for options, names in runs.items():
        assert script.main([*argv, *options]) == 0
        result = json.loads(output.read_text(encoding="utf-8"))
        assert set(result["metrics"]) == names, options
    share = sum(p.act == 1 for p in pick_prompts(load_prompts(data, "validation"), 8)) / 8
    assert result["baselines"]["always_inform"]["intent_accuracy"]["mean"] == share


def test_no_intent_leaves_out_only_a_reward_that_loads_a_classifier(script, data, tmp_path):
    """A coefficient of 0 loads none, whatever `intent_model` says."""
    args = {"intent_model": "./gone", "intent_coef": 0, "meteor_wordnet": "off"}
    agent = save_run(tmp_path, data, 1, reward_class={"id": "NLPReward", "args": args})
    output = tmp_path / "e.json"
    argv = ["--agent", str(agent), "--output", str(output), "--max_prompts", "4", "--no_intent"]
    assert script.main(argv) == 0
    assert "score" in json.loads(output.read_text(encoding="utf-8"))["metrics"]


def test_data_with_prompts_alone(script, tmp_path):
    """No reference and no act: what is left are lengths, distinct-n and copies."""
    (tmp_path / "d").mkdir()
    for split in ("train", "validation"):
        (tmp_path / "d" / f"{split}.jsonl").write_text('{"prompt": "Tea ?"}\n{"prompt": ["Hi .", "Hello ."]}\n')
    tiny.gpt2().save_pretrained(tmp_path / "lm")
    tiny.byte_tokenizer().save_pretrained(tmp_path / "lm")
    output = tmp_path / "e.json"
    assert (
        script.main(["--agent", str(tmp_path / "lm"), "--data_path", str(tmp_path / "d"), "--output", str(output)]) == 0
    )
    result = json.loads(output.read_text(encoding="utf-8"))
    assert set(result["metrics"]) == COUNTS
    assert set(result["baselines"]) == BASELINES - {
        "random_reference",
        "random_train_reply",
        "nearest_train_reply",
        "true_replies",
    }


def test_a_reward_of_ones_own_is_registered_first(script, data, tmp_path, capsys):
    (tmp_path / "mine.py").write_text(
        "from rlhf_dialog import BaseReward, RewardFactory\n"
        "@RewardFactory.register('Seven')\n"
        "class Seven(BaseReward):\n"
        "    def __call__(self, dialogues):\n"
        "        return [7.0] * len(dialogues)\n"
    )
    agent = save_run(tmp_path, data, 1, reward_class={"id": "Seven", "args": {}})
    output = tmp_path / "e.json"
    argv = ["--agent", str(agent), "--output", str(output), "--max_prompts", "4"]
    assert script.main(argv) == 2
    assert "--register" in capsys.readouterr().err
    argv += ["--register", str(tmp_path / "mine.py")]
    assert script.main(argv) == 0  # its code is the user's, its arguments are not
    assert "score" not in json.loads(output.read_text(encoding="utf-8"))["metrics"]
    for trust in (["--trust_config"], ["--config", str(tmp_path / "config.yaml")]):
        assert script.main([*argv, *trust]) == 0
        assert json.loads(output.read_text(encoding="utf-8"))["metrics"]["score"]["mean"] == 7.0
    del RewardFactory.classes["Seven"]
    assert script.main([*argv, "--register", str(tmp_path / "absent.py")]) == 2


def test_the_split_is_validation_unless_another_is_asked_for(script, data, runs, tmp_path):
    output = tmp_path / "e.json"
    for options, split in (([], "validation"), (["--split", "test"], "test"), (["--split", "train"], "train")):
        assert script.main(["--agent", str(runs[0]), "--output", str(output), *options]) == 0
        settings = json.loads(output.read_text(encoding="utf-8"))["settings"]
        prompts = load_prompts(data, split)
        assert (settings["split"], settings["num_prompts"]) == (split, len(prompts))
        assert settings["num_dialogues"] == len({prompt.meta["dialogue"] for prompt in prompts}) < len(prompts)
        assert settings["resampled"] == "dialogues"


def test_the_score_has_the_truncation_penalty_of_the_run(script, data, tmp_path):
    output, found = tmp_path / "e.json", {}
    for penalty in (0.0, 0.5):
        agent = save_run(tmp_path / str(penalty), data, 1, truncation_penalty=penalty)
        assert script.main(["--agent", str(agent), "--output", str(output), "--max_prompts", "8"]) == 0
        found[penalty] = json.loads(output.read_text(encoding="utf-8"))
        assert found[penalty]["settings"]["truncation_penalty"] == penalty
    free, charged = (found[penalty]["metrics"] for penalty in (0.0, 0.5))
    assert free["truncated"]["mean"] > 0
    assert charged["score"]["mean"] == pytest.approx(free["score"]["mean"] - 0.5 * free["truncated"]["mean"])
    assert found[0.0]["baselines"] == found[0.5]["baselines"]  # they are not cut


def test_a_judge_beside_the_classifier_of_the_reward(script, data, classifier, tmp_path, capsys):
    parts = [{"id": "Intent", "args": {"intent_model": classifier}}, LENGTH]
    agent = save_run(tmp_path, data, 1, reward_class={"id": "CompositeReward", "args": {"parts": parts}})
    output, report = tmp_path / "e.json", tmp_path / "table.md"
    argv = ["--agent", str(agent), "--output", str(output), "--report", str(report), "--max_prompts", "8"]
    assert script.main(argv) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "judged by the reward's own act classifier" in shown
    assert "judged by the reward's own act classifier" in report.read_text(encoding="utf-8")
    judged = {name.replace("intent", "judge") for name in ACTS}
    for options in ([], ["--no_intent"]):
        assert script.main([*argv, "--judge", classifier, *options]) == 0
        result = json.loads(output.read_text(encoding="utf-8"))
        assert judged <= set(result["metrics"])
        assert result["settings"]["judge"] == classifier
        shown = " ".join(capsys.readouterr().out.split())
        assert "is the same model as the reward's own act classifier" in shown
        assert " judge_accuracy | judge_macro_f1 |" in report.read_text(encoding="utf-8")
        assert set(result["baselines"]["true_replies"]) == set(result["metrics"])
    assert script.main([*argv, "--judge", classifier]) == 0
    metrics = json.loads(output.read_text(encoding="utf-8"))["metrics"]
    assert all(metrics[name.replace("intent", "judge")] == metrics[name] for name in ACTS)


@pytest.mark.parametrize("package", ["sacrebleu", "rouge_score"])
def test_a_package_that_is_not_installed(package, script, runs, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(
        "rlhf_dialog.models.chat_agent.ChatAgent.load", lambda *_, **__: pytest.fail("a model was loaded")
    )
    assert script.main(["--agent", str(runs[0]), "--output", str(tmp_path / "e.json")]) == 2
    name = package.replace("_", "-")
    assert f"the package {name} is not installed; install it (pip install {name})" in capsys.readouterr().err
