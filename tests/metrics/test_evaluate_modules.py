"""Modules of the `evaluate` library: what runs only if it is trusted, and how their results become metrics."""

import json
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
