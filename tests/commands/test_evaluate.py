"""What is measured of replies, replies without a model, and the JSON of scripts/evaluate.py."""

import json
import math
import time
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
import torch
from transformers import BertConfig, BertForSequenceClassification

from rlhf_dialog.commands import evaluate
from rlhf_dialog.config.loading import dump_yaml
from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.config.schema import Config
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.prompts import load_prompts
from rlhf_dialog.evaluation.compare import SWEEP, Comparison
from rlhf_dialog.evaluation.measure import Judges, measure, with_intervals
from rlhf_dialog.evaluation.replies import Replies, baseline_replies, generate_replies, pick_prompts, reference_nll
from rlhf_dialog.models.chat_agent import ChatAgent
from rlhf_dialog.models.generation import Sampling
from rlhf_dialog.rewards import BaseReward, CompositeReward, LengthMatch, Meteor
from rlhf_dialog.rewards.scoring import RewardError, Scorer, ScoringRules
from rlhf_dialog.rewards.timeout import RewardTimeout
from rlhf_dialog.runs.validation import Validation

COUNTS = {"mean_length", "mean_words", "truncated", "copied", "distinct_1", "distinct_2"}
OVERLAP = {"rouge1", "rougeLsum", "sacrebleu", "meteor", "meteor_shuffled", "meteor_margin"}
ACTS = {f"intent_accuracy{act}" for act in ("", "_inform", "_question", "_directive", "_commissive")} | {
    "intent_macro_f1"
}
RUN = {"score", "length_match", "reference_perplexity"}
LENGTH = {"id": "LengthMatch", "weight": 0.5}
BASELINES = {
    "constant_reply",
    "long_constant_reply",
    "repeat_last_turn",
    "random_reference",
    "random_train_reply",
    "always_inform",
    "true_replies",
}


@pytest.fixture(scope="module")
def script():
    return evaluate


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return str(tiny.write_data(tmp_path_factory.mktemp("data"), 12))


@pytest.fixture(scope="module")
def prompts(data):
    return load_prompts(data, "test")


def save_run(folder: Path, data: str, seed: int, **keys) -> Path:
    """A run folder as training leaves it: config.yaml beside agent/. Returns agent/."""
    tiny.gpt2(seed=seed).save_pretrained(folder / "agent")
    tiny.byte_tokenizer().save_pretrained(folder / "agent")
    (folder / "agent" / "rlhf_dialog.json").write_text('{"format_version": 1, "max_new_tokens": 9}', encoding="utf-8")
    reward = {"id": "CompositeReward", "args": {"parts": [{"id": "Meteor", "args": {"meteor_wordnet": "off"}}, LENGTH]}}
    keys = {"model_path": "m", "env": {"args": {"data_path": data}}, "reward_class": reward, **keys}
    (folder / "config.yaml").write_text(dump_yaml(Config.model_validate(keys)), encoding="utf-8")
    return folder / "agent"


@pytest.fixture(scope="module")
def runs(tmp_path_factory, data):
    root = tmp_path_factory.mktemp("runs")
    return save_run(root / "trained", data, seed=1), save_run(root / "start", data, seed=2)


@pytest.fixture(scope="module")
def agent(runs):
    return ChatAgent.load(runs[0])


# what is measured


class Share(BaseReward):
    """The share of words that are `yes`."""

    name = "share"

    def __call__(self, dialogues):
        return [d.response.split().count("yes") / max(len(d.response.split()), 1) for d in dialogues]


def test_measures_by_hand():
    dialogues = [
        Dialogue(["a", "no yes sir"], response="yes no yes"),
        Dialogue(["b"], response="", truncated=True),
    ]
    found = measure(Replies(dialogues, [4, 9]), Judges(Scorer(Share())))
    assert {name: values.tolist() for name, values in found.per_prompt.items()} == {
        "score": [pytest.approx(2 / 3), 0.0],
        "share": [pytest.approx(2 / 3), 0.0],
        "mean_length": [4.0, 9.0],
        "mean_words": [3.0, 0.0],
        "truncated": [0.0, 1.0],
        "copied": [0.5, 0.0],
    }
    assert {name: values.tolist() for name, values in found.per_block.items()} == {
        "distinct_1": [pytest.approx(2 / 3)],
        "distinct_2": [1.0],
    }
    points = found.points()
    assert points["mean_length"] == 6.5
    assert points["truncated"] == 0.5
    assert with_intervals(found)["mean_length"]["mean"] == 6.5


def test_distinct_n_is_the_mean_over_blocks_of_100():
    """100 times `a b` (2 of 200 words, 1 of 100 bigrams), 100 different words (100 of 100), and a rest of 50."""
    texts = ["a b"] * 100 + [f"w{i}" for i in range(100)] + ["rest"] * 50
    found = measure(Replies([Dialogue(["p"], response=text) for text in texts], [1] * 250), Judges(Scorer(Share())))
    assert found.per_block["distinct_1"].tolist() == [0.01, 1.0]
    assert found.per_block["distinct_2"].tolist() == [0.01, 0.0]
    assert found.points()["distinct_1"] == pytest.approx(0.505)


def test_meteor_is_called_meteor_whatever_its_variant():
    dialogues = [Dialogue(["a"], response="so it is", reference="so it is")]
    parts = CompositeReward(parts=[{"id": "Meteor", "args": {"meteor_wordnet": "off"}}, LENGTH])
    found = measure(Replies(dialogues, [4]), Judges(Scorer(parts))).per_prompt
    assert set(found) == (COUNTS | OVERLAP | {"score", "length_match"}) - {"sacrebleu", "distinct_1", "distinct_2"}
    assert found["meteor"][0] == pytest.approx(1 - 0.5 * (1 / 3) ** 3)  # one chunk of three words


def test_every_reference_of_a_prompt_counts():
    dialogue = Dialogue(["a"], response="so it is", reference="no way", references=["no way", "so it is"])
    one = replace(dialogue, references=[])
    best, first = (measure(Replies([d], [4]), Judges()).points() for d in (dialogue, one))
    assert best["rouge1"] == best["rougeLsum"] == 1.0
    assert best["meteor"] == pytest.approx(1 - 0.5 * (1 / 3) ** 3)
    assert first["rouge1"] == first["meteor"] == 0.0
    assert Meteor("off")([dialogue, one]) == [best["meteor"], 0.0]


def test_metrics_that_lack_their_data_are_left_out():
    bare = [Dialogue(["a"], response="so it is"), Dialogue(["b"], response="no", reference="no", act=2)]
    assert set(measure(Replies(bare, [4, 2]), Judges(intent=FakeIntent())).points()) == COUNTS


class FakeIntent:
    """Sees a question in whatever ends with `?`, else inform."""

    def predict(self, dialogues):
        return [int(d.response.endswith("?")) for d in dialogues]


def test_acts_by_hand():
    """Questions: one of two found. Inform: found once where it was wanted. Commissive: taken for inform."""
    cases = [("why ?", 2), ("well .", 2), ("so .", 1), ("yes .", 4)]
    dialogues = [Dialogue(["a"], response=text, act=act) for text, act in cases]
    points = measure(Replies(dialogues, [2] * 4), Judges(intent=FakeIntent())).points()
    assert points["intent_accuracy"] == 0.5
    assert points["intent_accuracy_question"] == 0.5
    assert points["intent_accuracy_inform"] == 1.0
    assert points["intent_accuracy_commissive"] == 0.0
    assert math.isnan(points["intent_accuracy_directive"])  # nobody wanted one
    assert points["intent_macro_f1"] == pytest.approx((2 / 3 + 1 / 2 + 0) / 3)
    always = measure(Replies(dialogues, [2] * 4, always_act=0), Judges(intent=FakeIntent())).points()
    assert always["intent_accuracy"] == 0.25


def test_the_published_way_counts_the_separator():
    """`<EOU>` in both texts gives ROUGE a free word; a reply that was cut off does not get it."""
    finished = Dialogue(["a"], response="yes", reference="no")
    cut = replace(finished, truncated=True)
    for dialogue, expected in ((finished, 2 * 1 / (2 + 2)), (cut, 0.0)):
        found = measure(Replies([dialogue], [2]), Judges(legacy_eou=True)).points()
        assert found["rouge1"] == pytest.approx(expected)
        assert measure(Replies([dialogue], [2]), Judges()).points()["rouge1"] == 0.0


def test_perplexity_agrees_with_one_reference_at_a_time(agent, prompts):
    """Without padding and batches, by the model's own forward."""
    nll, count = 0.0, 0
    short = [p for p in prompts if len(" <EOU> ".join(p.prompt_turns)) < 120]  # 128 bytes go in uncut
    for prompt in short:
        ids = agent.encoder.tokenizer(" <EOU> ".join(prompt.prompt_turns) + " <EOU>")["input_ids"]
        target = agent.encoder.tokenizer(" " + prompt.reference + " <EOU>")["input_ids"]
        logits = agent.policy.lm(torch.tensor([ids + target])).logits[0, len(ids) - 1 : -1].log_softmax(-1)
        nll -= logits.gather(1, torch.tensor(target).unsqueeze(1)).sum().item()
        count += len(target)
    replies = Replies(short, [1] * len(short), reference_nll(agent, short, batch_size=7))
    assert measure(replies, Judges()).points()["reference_perplexity"] == pytest.approx(math.exp(nll / count), rel=1e-4)


# replies


def test_the_texts_of_the_baselines(prompts, agent):
    train = ["first train reply", "second train reply"]
    found = baseline_replies(prompts, train, agent, seed=4)
    assert set(found) == BASELINES
    texts = {name: [dialogue.response for dialogue in replies.dialogues] for name, replies in found.items()}
    references = [prompt.reference for prompt in prompts]
    assert len(set(texts["constant_reply"])) == len(set(texts["long_constant_reply"])) == 1
    assert len(texts["long_constant_reply"][0].split()) > len(texts["constant_reply"][0].split())
    assert texts["repeat_last_turn"] == [prompt.prompt_turns[-1] for prompt in prompts]
    assert texts["true_replies"] == references
    assert sorted(texts["random_reference"]) == sorted(references)
    assert set(texts["random_train_reply"]) == set(train)
    for replies in found.values():
        assert [d.reference for d in replies.dialogues] == references
        assert [d.prompt_turns for d in replies.dialogues] == [p.prompt_turns for p in prompts]
    assert all(not prompt.response for prompt in prompts)  # the prompts themselves stay as they are


def test_no_random_reference_is_the_prompts_own(agent):
    for count in (2, 3, 7):
        prompts = [Dialogue(["p"], reference=f"reply {i}") for i in range(count)]
        for seed in range(8):
            found = baseline_replies(prompts, ["x"], agent, seed)["random_reference"]
            assert all(dialogue.response != dialogue.reference for dialogue in found.dialogues)


def test_a_baselines_length_counts_tokens_as_a_response_does(agent):
    """`abc` in bytes: a space, 3 letters, and the separator that ends it."""
    found = baseline_replies([Dialogue(["p"], reference="abc")], ["x"], agent)
    assert found["true_replies"].num_tokens == [5]


def test_true_replies_have_a_meteor_near_one_and_random_ones_not(prompts, agent):
    replies = baseline_replies(prompts, ["x"], agent)
    meteor = {
        name: measure(found, Judges(Scorer(Meteor("off")))).per_prompt["meteor"] for name, found in replies.items()
    }
    assert meteor["true_replies"].mean() > 0.97
    assert max(values.mean() for name, values in meteor.items() if name != "true_replies") < 0.6
    lengths = measure(replies["true_replies"], Judges(Scorer(LengthMatch()))).per_prompt["length_match"]
    assert lengths.tolist() == [0.0] * len(prompts)


def test_generated_replies_are_decided_by_the_seed(prompts, agent):
    sampling = Sampling(max_new_tokens=7)

    def texts(seed: int) -> list[str]:
        return [d.response for d in generate_replies(agent, prompts, sampling, seed, batch_size=5).dialogues]

    assert texts(0) == texts(0) != texts(1)
    found = generate_replies(agent, prompts, sampling, 0, batch_size=5)
    assert len(found.dialogues) == len(found.num_tokens) == len(prompts)
    assert [d.reference for d in found.dialogues] == [p.reference for p in prompts]
    assert all(1 <= n <= 7 for n in found.num_tokens)


def test_greedy_replies_depend_on_neither_seed_nor_batches(prompts, agent):
    sampling = Sampling(max_new_tokens=7, greedy=True)
    found = [generate_replies(agent, prompts, sampling, seed, size) for seed, size in ((0, 5), (1, 64))]
    assert [d.response for d in found[0].dialogues] == [d.response for d in found[1].dialogues]


def test_picked_prompts_keep_their_order_and_depend_on_the_seed():
    prompts = [Dialogue([str(i)]) for i in range(30)]
    picked = [int(p.prompt_turns[0]) for p in pick_prompts(prompts, 10, seed=1)]
    assert len(set(picked)) == 10
    assert picked == sorted(picked)
    assert picked != [int(p.prompt_turns[0]) for p in pick_prompts(prompts, 10, seed=2)]
    assert pick_prompts(prompts, None) == pick_prompts(prompts, 99) == prompts


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
    assert set(result) == {"metrics", "baselines", "settings"}
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


def test_two_agents_on_the_same_prompts(script, runs, tmp_path):
    output = tmp_path / "e.json"
    trained, start = map(str, runs)
    assert script.main(["--agent", trained, "--baseline", start, "--output", str(output), "--max_prompts", "9"]) == 0
    result = json.loads(output.read_text(encoding="utf-8"))
    assert set(result) == {"before", "after", "difference", "baselines", "settings"}
    for name in ("before", "after", "difference"):
        check_metrics(result[name])
    for name, found in result["difference"].items():
        expected = result["after"][name]["mean"] - result["before"][name]["mean"]
        assert found["mean"] == pytest.approx(expected, abs=1e-12)
    assert result["settings"]["num_prompts"] == 9
    alone = tmp_path / "alone.json"
    assert script.main(["--agent", trained, "--output", str(alone), "--max_prompts", "9"]) == 0
    assert json.loads(alone.read_text(encoding="utf-8"))["metrics"] == result["after"]
    run = [
        "--agent",
        start,
        "--config",
        str(runs[1].parent / "config.yaml"),
        "--output",
        str(alone),
        "--max_prompts",
        "9",
    ]
    assert script.main(run) == 0
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


def test_the_matched_temperature_has_the_agents_distinct_2(monkeypatch):
    """With a distinct-2 of half the temperature, an agent at 0.4 is met at temperature 0.8; one at 0.9 nowhere."""

    def replies(agent, prompts, sampling, *_):
        return agent if isinstance(agent, float) else sampling.temperature / 2

    class Points(float):
        def points(self):
            return {"distinct_2": float(self)}

    monkeypatch.setattr("rlhf_dialog.evaluation.replies.generate_replies", replies)
    monkeypatch.setattr("rlhf_dialog.evaluation.measure.measure", lambda found, judges: Points(found))
    for wanted, temperature in ((0.4, pytest.approx(0.8, abs=0.02)), (0.9, None)):
        systems = {"after": wanted, "before": "baseline"}
        comparison = Comparison(systems, [Dialogue(["a"])], Judges(), Sampling(greedy=True))
        assert comparison.matched_temperature() == temperature


def test_a_sweep_has_every_sampling(script, runs, tmp_path):
    output, report = tmp_path / "e.json", tmp_path / "table.md"
    trained, start = map(str, runs)
    argv = ["--agent", trained, "--baseline", start, "--output", str(output), "--max_prompts", "8", "--sweep"]
    assert script.main([*argv, "--report", str(report)]) == 0
    result = json.loads(output.read_text(encoding="utf-8"))
    names = {f"{who}, {how}" for who in ("before", "after") for how in SWEEP}
    assert set(result["sweep_difference"]) == names
    sharper = result["sweep_difference"]["before, greedy"]["mean_words"]["mean"]
    assert sharper == pytest.approx(
        result["after"]["mean_words"]["mean"] - result["sweep"]["before, greedy"]["mean_words"]["mean"]
    )
    assert set(result["sweep"]) == names  # bytes without spaces are no words: no temperature matches
    assert script.main([*argv[:2], "--output", str(output), "--max_prompts", "8", "--greedy"]) == 0
    greedy = json.loads(output.read_text(encoding="utf-8"))["metrics"]["rouge1"]
    assert result["sweep"]["after, greedy"]["rouge1"] == greedy
    lines = report.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 2 + 3 + 8 + len(BASELINES)
    assert len({line.count("|") for line in lines}) == 1


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


def test_an_agent_against_itself_differs_by_nothing(script, runs, tmp_path):
    agent = str(runs[0])
    output = tmp_path / "e.json"
    assert script.main(["--agent", agent, "--baseline", agent, "--output", str(output), "--max_prompts", "6"]) == 0
    difference = json.loads(output.read_text(encoding="utf-8"))["difference"]
    assert set(difference) == COUNTS | OVERLAP | RUN
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
    options = [
        "--temperature",
        "0.5",
        "--top_k",
        "20",
        "--top_p",
        "0.9",
        "--min_new_tokens",
        "4",
        "--min_context_size",
        "3",
    ]
    assert script.main(["--agent", str(runs[0]), "--output", str(output), "--max_prompts", "6", *options]) == 0
    result = json.loads(output.read_text(encoding="utf-8"))
    sampling = {
        "temperature": 0.5,
        "top_k": 20,
        "top_p": 0.9,
        "min_new_tokens": 4,
        "max_new_tokens": 9,
        "greedy": False,
    }
    assert result["settings"]["sampling"] == sampling
    assert result["settings"]["min_context_size"] == 3
    assert result["metrics"]["mean_length"]["mean"] >= 4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--agent", "./absent"], "absent"),
        (["--config", "absent.yaml"], "not found"),
        (["--baseline", "./absent"], "absent"),
        (["--temperature", "0"], "temperature"),
        (["--top_p", "1.5"], "top_p"),
        (["--batch_size", "0"], "batch_size"),
        (["--max_prompts", "0"], "max_prompts"),
        (["--min_context_size", "50"], "min_context_size"),
        (["--device", "cuda"], "CUDA"),
        (["--device", "mps"], "mps"),
        (["--seed", "4294967296"], "--seed"),
        (["--temperature", "1e-45"], "temperature"),
        (["--data_path", ""], "--data_path"),
        (["--output", ""], "--output"),
        (["--report", "."], "--report"),
        (["--register", "exits.py"], "--register"),
    ],
)
def test_mistakes_are_exit_code_2_and_write_nothing(script, runs, tmp_path, monkeypatch, capsys, options, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    argv = ["--agent", str(runs[0]), "--output", str(tmp_path / "out" / "e.json"), *options]
    try:
        code = script.main(argv)
    except SystemExit as stopped:  # argparse's own way
        code = stopped.code
    error = capsys.readouterr().err
    assert code == 2, error
    assert words in error
    assert "Traceback" not in error
    assert list(tmp_path.iterdir()) == []


def test_two_outputs_are_two_files(script, runs, tmp_path, capsys):
    path = str(tmp_path / "e.json")
    assert script.main(["--agent", str(runs[0]), "--output", path, "--samples", path]) == 2
    assert "twice" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_file_that_exits_is_not_the_end(script, runs, tmp_path, capsys):
    (tmp_path / "exits.py").write_text("import sys\nsys.exit(f'{len(sys.argv)} words')\n")
    argv = ["--agent", str(runs[0]), "--output", str(tmp_path / "e.json"), "--register", str(tmp_path / "exits.py")]
    assert script.main(argv) == 2
    assert "SystemExit: 1 words" in capsys.readouterr().err


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
    (tmp_path / "test.jsonl").write_text('{"prompt": "Tea ?", "reference": "No ."}\n{"prompt": "Why ?"}\n')
    argv = ["--agent", str(runs[0]), "--output", str(tmp_path / "e.json"), "--data_path", str(tmp_path)]
    lm = save_plain(tmp_path / "lm")
    assert script.main(["--agent", lm, *argv[2:]]) == 0
    error = capsys.readouterr().err
    assert "1 of 2 prompts have no reference" in error
    assert "2 of 2 prompts have no act" in error
    (tmp_path / "test.jsonl").rename(tmp_path / "prompts.jsonl")
    assert script.main(["--agent", lm, *argv[2:4], "--data_path", str(tmp_path / "prompts.jsonl")]) == 2
    assert "--split train" in capsys.readouterr().err


def save_plain(folder: Path) -> str:
    """A model folder without settings."""
    tiny.gpt2().save_pretrained(folder)
    tiny.byte_tokenizer().save_pretrained(folder)
    return str(folder)


def test_perplexity_reads_whole_references_whatever_the_positions(prompts, tmp_path):
    """A model of 64 positions sees less of the prompt, not less of the reference."""
    tiny.gpt2(n_positions=64).save_pretrained(tmp_path)
    tiny.byte_tokenizer().save_pretrained(tmp_path)
    found = reference_nll(ChatAgent.load(tmp_path), prompts)
    whole = [len(prompt.reference) + 2 for prompt in prompts]  # a space before, the separator behind
    assert found[:, 1].tolist() == [min(length, 63) for length in whole]


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


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A random classifier of four acts."""
    folder = tmp_path_factory.mktemp("classifier")
    tokenizer = tiny.byte_tokenizer()
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(**sizes, intermediate_size=16, num_labels=4, pad_token_id=tokenizer.pad_token_id)
    torch.manual_seed(0)
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


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
    share = sum(p.act == 1 for p in pick_prompts(load_prompts(data, "test"), 8)) / 8
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
    for split in ("train", "test"):
        (tmp_path / "d" / f"{split}.jsonl").write_text('{"prompt": "Tea ?"}\n{"prompt": ["Hi .", "Hello ."]}\n')
    tiny.gpt2().save_pretrained(tmp_path / "lm")
    tiny.byte_tokenizer().save_pretrained(tmp_path / "lm")
    output = tmp_path / "e.json"
    assert (
        script.main(["--agent", str(tmp_path / "lm"), "--data_path", str(tmp_path / "d"), "--output", str(output)]) == 0
    )
    result = json.loads(output.read_text(encoding="utf-8"))
    assert set(result["metrics"]) == COUNTS
    assert set(result["baselines"]) == BASELINES - {"random_reference", "random_train_reply", "true_replies"}


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


def test_a_reward_without_an_end_stops_an_evaluation():
    class Stuck(BaseReward):
        name = "stuck"

        def __call__(self, dialogues):
            time.sleep(10)

    config = Config(model_path="m", env={"args": {"data_path": "d"}}, reward_class={"id": "x"}, reward_timeout_s=0.2)
    with pytest.raises(RewardTimeout, match=r"reward 'stuck' was not done within 0\.2 seconds"):
        Validation(config, [Dialogue(["Hi ."], reference="Ho .")], Stuck()).check()


def test_a_reward_that_may_skip_is_measured_on_what_it_scored():
    class Picky(BaseReward):
        name = "picky"

        def __call__(self, dialogues):
            return [float("nan") if "?" in d.response else 3.0 for d in dialogues]

    dialogues = [Dialogue(["a"], response="why ?"), Dialogue(["a"], response="so .")]
    with pytest.raises(RewardError, match="not finite"):
        measure(Replies(dialogues, [2, 2]), Judges(Scorer(Picky())))
    rules = ScoringRules(skip_unscored=True)
    assert measure(Replies(dialogues, [2, 2]), Judges(Scorer(Picky(), rules))).points()["score"] == 3.0
