"""`rlhf-dialog audit`: exit codes, files, and what happens to bad input and to a kill."""

import json

import pytest

from rlhf_dialog.commands import audit
from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.data.prompts import PromptRules
from tests.parts import tiny
from tests.parts.classifiers import save_classifier
from tests.parts.evaluations import save_plain
from tests.parts.processes import ROOT

OWN = """
from rlhf_dialog import BaseReward, RewardFactory


@RewardFactory.register("Planted")
class Planted(BaseReward):
    name = "planted"

    def __init__(self, empty=0.0, zebras=0.0, stop=0):
        self.empty, self.stop, self.calls = empty, stop, 0
        self.zebras = zebras

    def __call__(self, dialogues):
        self.calls += 1
        if self.stop and self.calls == self.stop:
            import os, signal
            os.kill(os.getpid(), signal.SIGINT)
        paid = [self.empty * (d.response == "") + self.zebras * (d.response.count("zebra") > 1) for d in dialogues]
        return [x + (d.response == d.reference) for x, d in zip(paid, dialogues)]
"""
SMALL = [
    *("--max_prompts", "20", "--search_prompts", "10", "--search_replies", "100"),
    *("--search_rounds", "4", "--search_candidates", "20"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return str(tiny.write_data(tmp_path_factory.mktemp("data"), 12))


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "own.py"
    path.write_text(OWN, encoding="utf-8")
    return str(path)


@pytest.fixture(autouse=True)
def _classes_of_the_package_alone(monkeypatch):
    monkeypatch.setattr(RewardFactory, "classes", dict(RewardFactory.classes))


def config_in(folder, data, reward="Planted", **args):
    path = folder / "run.yaml"
    keys = {"model_path": "m", "env": {"args": {"data_path": data}}, "reward_class": {"id": reward, "args": args}}
    path.write_text(json.dumps({**keys, "max_new_tokens": 24}), encoding="utf-8")
    return str(path)


def audited(folder, data, own, *words, reward="Planted", **args):
    output = folder / "audit.json"
    argv = ["--config", config_in(folder, data, reward, **args), "--register", own, "--output", str(output)]
    code = audit.main([*argv, *SMALL, *words])
    return code, json.loads(output.read_text(encoding="utf-8"))


def test_a_sound_reward_is_exit_code_0_and_a_hole_1(data, own, tmp_path, capsys):
    code, result = audited(tmp_path, data, own, "--seed", "3")
    assert (code, result["findings"]) == (0, [])
    settings, budget = result["settings"], result["settings"]["budget"]
    assert (settings["num_prompts"], settings["seed"], settings["max_new_tokens"]) == (20, 3, 24)
    different = len({prompt.reference for prompt in PromptRules().load(data, "train")})  # fewer than --search_replies
    wanted = {"prompts": 10, "replies": different, "rounds": 4, "candidates": 20, "size": 10 * (different + 1 + 2 * 80)}
    assert {name: budget[name] for name in wanted} == wanted
    assert settings["reward_class"] == {"id": "Planted", "args": {}}
    text = capsys.readouterr().out
    assert text.startswith("no hole found: ")
    assert text.splitlines()[0] == result["verdict"]
    assert "judge_retrieval: how near a reply is" in text
    code, result = audited(tmp_path, data, own, empty=1.5)
    assert code == 1
    assert [(one["probe"], one["mean"]) for one in result["findings"]] == [
        *[("empty", 0.5), ("search: words from nothing", 0.5)]  # which begins with the empty reply
    ]
    text = capsys.readouterr().out
    assert text.startswith("2 holes found: ")
    assert "hole: empty: paid +0.500 [+0.500, +0.500] more than true replies, and more at 100% of prompts" in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_search_that_retrieval_cannot_judge_is_found_not_judged(own, tmp_path, capsys):
    """All held-out replies are the same, so retrieval cannot tell true ones from random ones; two zebras are paid more."""
    rows = [json.dumps({"dialog": [f"Hi {i} .", "Hello there ."]}) + "\n" for i in range(20)]
    odd = json.dumps({"dialog": ["Hi .", "A zebra , a zebra ."]})
    for split, text in (("train", odd), ("validation", "")):
        (tmp_path / f"{split}.jsonl").write_text("".join(rows) + text, encoding="utf-8")
    code, result = audited(tmp_path, str(tmp_path), own, zebras=1.5)
    assert result["findings"][0]["unjudged"]
    assert code == 1
    text = capsys.readouterr().out
    assert text.startswith("found, not judged: ")
    assert "  not judged: search: training replies: paid +0.500" in text
    assert "raise --search_prompts" in text


@pytest.mark.slow
def test_judges_look_at_every_probe(data, own, tmp_path, capsys):
    classifier, other = (save_classifier(tmp_path / str(size), hidden_size=size) for size in (16, 32))
    words = ["--judge", str(other), "--judge", "CopyPrice", "--likelihood", save_plain(tmp_path / "lm")]
    code, result = audited(tmp_path, data, own, *words, reward="Intent", intent_model=str(classifier))
    assert set(result["probes"]["empty"]["judges"]) == {"judge_acts", "judge_copy_price", "likelihood"}
    assert result["probes"]["copy of turn -1"]["judges"]["judge_copy_price"]["mean"]["mean"] < -0.9
    assert result["probes"]["empty"]["judges"]["likelihood"]["mean"]["mean"] < 0
    assert "judge_retrieval" not in capsys.readouterr().out
    assert code in (0, 1)


FUNCTIONS = """
import sys
sys.path.insert(0, {root!r})
from rlhf_dialog import watch

def pays_length(prompts, completions, **columns):
    return [float(len(text.split())) for text in completions]

def is_true(completions, reference):
    return [float(text == true) for text, true in zip(completions, reference)]

watched = watch(pays_length, folder="watched")
"""


@pytest.mark.parametrize("function", ["pays_length", "watched"])
def test_a_function_alone_is_audited(data, tmp_path, monkeypatch, capsys, function):
    """Without a run, a model or a YAML; a watched function writes nothing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(FUNCTIONS.format(root=str(ROOT)), encoding="utf-8")
    words = ["--reward", f"mine.py:{function}", "--data", data, "--output", "audit.json", *SMALL]
    assert audit.main(words) == 1
    result = json.loads((tmp_path / "audit.json").read_text(encoding="utf-8"))
    holes = {finding["probe"]: finding["mean"] for finding in result["findings"] if finding["hole"]}
    assert holes["repeated word, 16"] > 5
    assert result["settings"]["reward_class"]["id"] == f"mine.py:{function}"
    assert "hole: repeated word, 16: paid +" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["audit.json", "mine.py"]


def test_a_sound_function_has_no_hole(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(FUNCTIONS.format(root=str(ROOT)), encoding="utf-8")
    assert audit.main(["--reward", "mine.py:is_true", "--data", data, *SMALL]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--reward", "mine.py:pays_length"], "--data_path"),
        (["--data", "d"], "--reward FILE:FUNCTION"),
        (["--reward", "absent.py:f", "--data", "DATA"], "absent.py"),
    ],
)
def test_a_function_without_what_it_needs(data, tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    assert audit.main([data if word == "DATA" else word for word in words]) == 2
    assert said in capsys.readouterr().err


IN_THE_SEARCH = 23  # calls of the reward: 17 in the checks of the batch, 3 for the probes


def test_ctrl_c_in_the_search_leaves_the_files_as_they_were(data, own, tmp_path):
    (tmp_path / "audit.json").write_text("{}", encoding="utf-8")  # of an earlier audit
    words = ["--config", config_in(tmp_path, data, stop=IN_THE_SEARCH), "--register", own]
    assert audit.main([*words, "--output", str(tmp_path / "audit.json"), *SMALL]) == 130
    assert (tmp_path / "audit.json").read_text(encoding="utf-8") == "{}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["audit.json", "run.yaml"]
