"""The row of a language model."""

import json

import numpy as np
import pytest

from experiments.policies_table import command as benchmark_policies
from experiments.policies_table.language_model import measure_language_model
from experiments.policies_table.table import Plan
from rlhf_dialog.config.schema import EnvironmentConfig
from rlhf_dialog.evaluation.dialogues import means
from rlhf_dialog.runs.data_source import build_simulated, spoken
from tests.parts.agents import save
from tests.parts.policy_runs import domain_file

CONTEXT = {"max_new_tokens": 4, "max_prompt_length": 40, "context_size": 1}


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    """An agent in the folder of a run of 2 iterations and 96 dialogues."""
    run = tmp_path_factory.mktemp("run")
    rows = [{"iteration": n, "episodes": 48 * n} for n in (1, 2)]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return save(run / "agent", CONTEXT)


def test_it_is_measured_in_words_beside_the_rules(agent, tmp_path):
    plan = Plan(str(domain_file(tmp_path)), test_dialogues=3)
    (point,) = measure_language_model(agent, plan)
    assert (point["mark"], point["training"]["dialogues"], point["training"]["updates"]) == (0, 96, 2)
    assert point["training"]["parameters"] > 0
    assert [len(own) for own in point["test"].values()] == [3, 3, 3]
    assert set(point["test"]["success"]) == {0.0}  # it babbles
    source = build_simulated(
        EnvironmentConfig(id="restaurant", args={"domain": plan.domain, "user": "friendly"}), 0, "test"
    )
    rules = means(spoken("handcrafted", source, range(3)))
    assert np.mean(point["handcrafted"]["reward"]) == pytest.approx(rules["reward"])


def test_its_row_is_in_the_table_without_errors_alone(agent, tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark_policies, "run_jobs", lambda jobs, _: ((cell, job()) for cell, job in jobs))
    domain, output = domain_file(tmp_path), tmp_path / "table.json"
    words = f"--policies random --errors 0 15 --test_dialogues 3 --seeds 1 --output {output}".split()
    assert benchmark_policies.main([*words, "--domain", str(domain), "--language_model", str(agent)]) == 0
    rows = json.loads(output.read_text(encoding="utf-8"))["summary"]
    assert [row["error_rate"] for row in rows if row["policy"] == "language_model"] == [0.0]
