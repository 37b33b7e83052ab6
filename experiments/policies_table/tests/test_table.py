"""The cells of the table of policies: what they contain, and when they are refused."""

import pytest

from experiments.policies_table.table import Cell, Plan, read_cell, train_cell, write_cell
from experiments.policies_table.tests.policy_cells import point as measured
from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.policies.base import PolicySpec
from rlhf_dialog.task_oriented.policies.handcrafted import Handcrafted
from rlhf_dialog.task_oriented.policies.ppo import PPO, imitate
from rlhf_dialog.task_oriented.policies.sampling.measures import TEST_SEED, means
from rlhf_dialog.task_oriented.policies.sampling.sampler import run_dialogues
from tests.parts.policy_runs import domain_file


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    domain = domain_file(tmp_path_factory.mktemp("domain"))
    return Plan(str(domain), marks=(3, 8), test_dialogues=6, args={"dqn": {"hidden_sizes": [4]}})


def without_seconds(points):
    kept = [{k: v for k, v in point["training"].items() if "seconds" not in k} for point in points]
    return [point | {"training": own} for point, own in zip(points, kept, strict=True)]


def test_a_cell_is_measured_at_each_mark(plan):
    points = train_cell(Cell("dqn", 0.15, 3), plan)
    assert [point["mark"] for point in points] == [3, 8]
    for point in points:
        training, test = point["training"], point["test"]
        assert training["dialogues"] >= point["mark"]
        assert training["turns"] == 64 * training["updates"]
        assert [len(own) for own in test.values()] == [6, 6, 6]
        assert test["reward"] == [20 * s - t for s, t in zip(test["success"], test["turns"], strict=True)]
    assert points[0]["training"]["dialogues"] < points[1]["training"]["dialogues"]
    assert points[0]["training"]["cpu_seconds"] < points[1]["training"]["cpu_seconds"]
    assert "learn/loss" in points[1]["training"]["metrics"]
    assert without_seconds(train_cell(Cell("dqn", 0.15, 3), plan)) == without_seconds(points)
    assert without_seconds(train_cell(Cell("dqn", 0.15, 4), plan)) != without_seconds(points)


def test_imitation_is_the_network_of_ppo_fitted_to_dialogues_of_the_rules(plan):
    known = plan.known_of(Cell("imitation", 0.15, 3), "")
    assert (known["marks"], known["args"]["hidden_sizes"], "batchsz" in known) == ([3, 8], [128, 64], False)
    points, scene = train_cell(Cell("imitation", 0.15, 3), plan), plan.scene(0.15)
    for point, mark in zip(points, (3, 8), strict=True):
        policy = PPO(setting := PolicySpec(scene.num_features, len(scene.names), 3, scene.domain))
        episodes = run_dialogues(Handcrafted(setting.domain), scene.make, 3, range(mark))
        assert point["training"]["metrics"] == imitate(policy, episodes, 3)
        assert point["training"]["turns"] == sum(map(len, episodes))
        assert (point["mark"], point["training"]["dialogues"]) == (mark, mark)
        expected = means(run_dialogues(policy, scene.make, TEST_SEED, range(6)))
        assert sum(point["test"]["reward"]) / 6 == pytest.approx(expected["reward"])


def test_a_baseline_is_measured_without_training(plan):
    (point,) = train_cell(Cell("handcrafted", 0.15, 0), plan)
    assert (point["mark"], point["training"]["dialogues"], point["training"]["parameters"]) == (0, 0, 0)
    scene = plan.scene(0.15)
    setting = PolicySpec(scene.num_features, len(scene.names), 0, scene.domain)
    expected = means(run_dialogues(plan.policy("handcrafted", setting), scene.make, TEST_SEED, range(6)))
    assert sum(point["test"]["turns"]) / 6 == pytest.approx(expected["turns"])
    assert sum(point["test"]["reward"]) / 6 == pytest.approx(expected["reward"])


def test_a_cell_is_read_with_the_settings_that_made_it_alone(plan, tmp_path):
    cell = Cell("dqn", 0.15, 3)
    known = plan.known_of(cell, "hash")
    assert read_cell(tmp_path, cell, known) is None
    points = [measured(3, [1.0, -1.0]), measured(8, [2.0, -2.0])]
    write_cell(tmp_path, cell, known, {"commit": "abc"}, points)
    assert read_cell(tmp_path, cell, known)["points"] == points
    others = Plan(plan.domain, marks=(3, 9), test_dialogues=6, args={"dqn": {"lr": 0.1}})
    with pytest.raises(UserError) as error:
        read_cell(tmp_path, cell, others.known_of(cell, "other"))
    for name in ("args: ", "marks: [3, 8] -> [3, 9]", "domain_hash: 'hash' -> 'other'", "remove the file"):
        assert name in str(error.value)
    assert "test_dialogues" not in str(error.value)


def test_a_name_cannot_leave_the_folder():
    assert Cell("../x/y", 0.005, 0).file == "..%2Fx%2Fy_0.5_0.json"
