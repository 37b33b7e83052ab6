"""Modules of the `evaluate` library: what runs only if it is trusted, and how their results become metrics."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from rlhf_dialog import UserError, VecInfoFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation.measure import Judges, average_draws, differences, measure, with_intervals
from rlhf_dialog.evaluation.replies import Replies
from rlhf_dialog.evaluation.report import cell, finite
from rlhf_dialog.metrics.evaluate_modules import EvaluateModule

MODULE = """
import datasets
import evaluate


class Lengths(evaluate.Metric):
    def _info(self):
        columns = {COLUMNS}
        return evaluate.MetricInfo(description="", citation="", features=datasets.Features(columns))

    def _compute(self, predictions, references=None):
        lengths = [len(text) for text in predictions]
        return RESULT
"""
TEXT = '"predictions": datasets.Value("string")'
REFERENCE = f'{TEXT}, "references": datasets.Value("string")'
REFERENCES = f'{TEXT}, "references": datasets.Sequence(datasets.Value("string"))'


def write(folder, result, columns=TEXT, name="lengths"):
    (folder / name).mkdir()
    text = MODULE.replace("COLUMNS", columns).replace("RESULT", result)
    (folder / name / f"{name}.py").write_text(text, encoding="utf-8")
    return str(folder / name)


def dialogues(*texts):
    return [
        Dialogue(["Hi ."], text, f"true {i}", references=[f"true {i}", "or so"], meta={"dialogue": i})
        for i, text in enumerate(texts)
    ]


def test_a_name_of_the_hub_needs_trust(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"^--metric: 'rouge:rouge1': is a name of the Hub.*trust_remote_code"):
        EvaluateModule("rouge:rouge1", False, "--metric")
    assert "rouge" not in caplog.text
    module = EvaluateModule("some/rouge:rouge1", True, "--metric")
    assert (module.name, module.source, module.key) == ("rouge", "some/rouge", "rouge1")
    assert "Python from 'some/rouge' on the Hub may run with all your permissions" in caplog.text


def test_a_folder_never_becomes_a_name_of_the_hub(tmp_path, monkeypatch):
    """The library would look on the Hub for a folder of the working directory that has no module."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rouge").mkdir()
    for word in ("rouge", "./absent"):
        with pytest.raises(UserError, match=r"\.py is not there; name the folder"):
            EvaluateModule(word, True, "--metric")
    (tmp_path / "rouge" / "rouge.py").write_text("")
    assert EvaluateModule("rouge", False, "--metric").source == str(tmp_path / "rouge" / "rouge.py")


@pytest.mark.parametrize("modules", [[], "rouge", [3], None])
def test_the_modules_of_a_vec_info_are_a_list(modules):
    with pytest.raises(UserError, match=r"vec_info_class\.args\.modules: .*wanted a list"):
        VecInfoFactory.create("EvaluateInfo", {"modules": modules})
    with pytest.raises(UserError, match="name of the Hub"):
        VecInfoFactory.create("EvaluateInfo", {"modules": ["rouge"], "trust_remote_code": "yes"})


def test_a_number_without_an_interval_is_shown_alone():
    form = "{mean:.3f} [{low:.3f}, {high:.3f}]"
    assert cell(finite({"mean": 0.25, "low": float("nan"), "high": float("nan")}), form) == "0.250"
    assert cell({"mean": 0.25, "low": 0.2, "high": 0.3}, form) == "0.250 [0.200, 0.300]"
    assert cell({"mean": None, "low": None, "high": None}, form) == "-"


class Value:
    """As a column of texts is named by `datasets`."""


class Sequence:
    """As a column of lists."""


@pytest.fixture
def modules(monkeypatch):
    """`modules[source] = (features, compute)`: what the library, which takes seconds to import, would load."""
    found = {}

    def load(source, keep_in_memory):
        features, compute = found[source]
        return SimpleNamespace(features=features, compute=compute)

    monkeypatch.setitem(sys.modules, "evaluate", SimpleNamespace(load=load))
    return found


def trusted(word):
    return EvaluateModule(word, True, "--metric")


def test_what_a_module_is_given(modules):
    """Its columns alone; references as texts or as lists, as it says, also where it takes both."""
    given = []

    def compute(**columns):
        given.append(columns)
        return {"x": 1.0}

    alone = [Dialogue(["Who ?"], "I .", "Ada .")]  # it has one reference, and no list of them
    text, texts, several = ({"predictions": Value(), "references": one()} for one in (Value, Sequence, Sequence))
    for name, features, some, wanted in (
        ("data", {"data": Value()}, dialogues("a", "b"), {"data": ["a", "b"]}),
        ("sources", {"sources": Value()}, alone, {"sources": ["Who ?"]}),
        ("text", text, dialogues("a"), {"predictions": ["a"], "references": ["true 0"]}),
        ("texts", texts, dialogues("a"), {"predictions": ["a"], "references": [["true 0", "or so"]]}),
        ("one", texts, alone, {"predictions": ["I ."], "references": [["Ada ."]]}),
        ("both", [text, several], dialogues("a"), {"predictions": ["a"], "references": [["true 0", "or so"]]}),
    ):
        modules[name] = (features, compute)
        assert trusted(name).compute(some) == {name: 1.0}
        assert given.pop() == wanted, name
    assert trusted("text").compute([*alone, Dialogue(["Who ?"], "no reference")]) == {}
    assert given == []
    modules["pictures"] = ({"images": Value(), "predictions": Value()}, compute)
    with pytest.raises(UserError, match=r"'pictures': needs the columns images; replies have predictions, data"):
        trusted("pictures").load()


def test_which_results_are_columns_and_which_are_scalars(modules):
    results = {
        "each": np.array([1, 2]),
        "mean": np.float32(1.5),
        "whole": 3,
        "three": [1, 2, 3],
        "text": "x",
        "no": None,
    }
    modules["m"] = ({"predictions": Value()}, lambda predictions: results)
    module = trusted("m")
    assert module.compute(dialogues("a", "b")) == {"m/each": [1.0, 2.0], "m/mean": 1.5, "m/whole": 3.0}
    assert (module.names, module.scalars) == (["m/each", "m/mean", "m/whole"], {"m/mean", "m/whole"})
    assert trusted("m:mean").compute(dialogues("a", "b")) == {"m/mean": 1.5}
    with pytest.raises(UserError, match=r"'m:three': has no number 'three'; it has each, mean, whole"):
        trusted("m:three").compute(dialogues("a", "b"))
    without_reference = [Dialogue(["Hi ."], "a"), Dialogue(["Hi ."], "b")]  # for which no other library is imported
    measured = measure(Replies(without_reference, [1] * 2), Judges(modules=[module]))
    assert measured.per_prompt["m/each"].tolist() == [1, 2]
    assert measured.scalars == {"m/mean": 1.5, "m/whole": 3.0}


def test_the_metrics_of_a_rollout_are_means(modules):
    modules["m"] = ({"predictions": Value()}, lambda predictions: {"each": [1.0, 4.0], "whole": 0.5})
    modules["n"] = ({"predictions": Value()}, lambda predictions: {"n": [2.0, 4.0]})
    info = VecInfoFactory.create("EvaluateInfo", {"modules": ["m", "n"], "trust_remote_code": True})
    expected = {"metric/m/each": 2.5, "metric/m/whole": 0.5, "metric/n": 3.0}
    assert info(SimpleNamespace(dialogues=dialogues("a", "b"))) == expected


library = pytest.mark.slow  # it takes seconds to import


@library
def test_lists_are_columns_with_intervals_and_scalars_are_not(tmp_path):
    result = '{"each": lengths, "mean": sum(lengths) / len(lengths), "precisions": [1.0, 2.0], "text": "x"}'
    module = EvaluateModule(write(tmp_path, result), False, "--metric")
    before = measure(Replies(dialogues("a", "ab", "abc"), [1] * 3), Judges(modules=[module]))
    assert before.per_prompt["lengths/each"].tolist() == [1, 2, 3]
    assert before.scalars == {"lengths/mean": 2.0}
    assert (module.names, module.scalars) == (["lengths/each", "lengths/mean"], {"lengths/mean"})
    after = measure(Replies(dialogues("ab", "abc", "abcde"), [1] * 3), Judges(modules=[module]))
    found = with_intervals(after)
    assert found["lengths/each"]["low"] < found["lengths/each"]["mean"] == pytest.approx(10 / 3)
    assert json.loads(json.dumps(finite(found["lengths/mean"]))) == {
        "mean": pytest.approx(10 / 3),
        "low": None,
        "high": None,
    }
    change = differences(before, after)
    assert change["lengths/each"]["mean"] == change["lengths/mean"]["mean"] == pytest.approx(4 / 3)
    assert np.isnan(change["lengths/mean"]["low"])
    assert average_draws([before, after]).scalars == {"lengths/mean": pytest.approx(8 / 3)}
    only = EvaluateModule(f"{module.source}:mean", False, "--metric")
    assert only.compute(dialogues("abcd")) == {"lengths/mean": 4.0}
    with pytest.raises(UserError, match=r"has no number 'median'; it has each, mean"):
        EvaluateModule(f"{module.source}:median", False, "--metric").compute(dialogues("abcd"))


@library
@pytest.mark.parametrize(
    ("columns", "result", "expected"),
    [(REFERENCE, "{'x': references[1] == 'true 1'}", 1.0), (REFERENCES, "{'x': len(references[0])}", 2.0)],
)
def test_references_are_texts_or_lists_as_the_module_says(tmp_path, columns, result, expected):
    module = EvaluateModule(write(tmp_path, result, columns), False, "--metric")
    assert module.compute(dialogues("a", "b")) == {"lengths": expected}
    assert module.compute([*dialogues("a"), Dialogue(["Hi ."], "no reference")]) == {}


@library
def test_what_fails_is_said(tmp_path):
    for name, columns, result, words in (
        ("a", f'{TEXT}, "images": datasets.Value("string")', "{}", "needs the columns images"),
        ("b", TEXT, "{}[3]", r"--metric: '.*/b' raised KeyError: 3"),
        ("c", "1 / 0", "{}", r"--metric: '.*/c' raised ZeroDivisionError"),
    ):
        module = EvaluateModule(write(tmp_path, result, columns, name), False, "--metric")
        with pytest.raises(UserError, match=words):
            module.compute(dialogues("a", "b"))


@library
def test_the_metrics_of_a_rollout(tmp_path):
    word = write(tmp_path, '{"each": lengths, "mean": 0.5}')
    info = VecInfoFactory.create("EvaluateInfo", {"modules": [word]})
    assert info(SimpleNamespace(dialogues=dialogues("a", "abc"))) == {
        "metric/lengths/each": 2.0,
        "metric/lengths/mean": 0.5,
    }
