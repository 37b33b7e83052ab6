"""The quickstart in small: its own configurations, one stage after the other, with a few steps each."""

import json
import re

import pytest

from experiments import quickstart_table
from rlhf_dialog import ChatAgent, main
from rlhf_dialog.commands import plot_run, write_dialogues
from rlhf_dialog.commands.supervised import train_intent_classifier, train_preference_model, train_sft
from tests.parts.processes import ROOT, load_script

pytestmark = pytest.mark.slow
MODEL = ["--n_layer", "1", "--n_embd", "32", "--n_head", "2", "--vocab_size", "400", "--evals", "1"]
CLASSIFIER = ["--num_layers", "1", "--hidden_size", "32", "--vocab_size", "300"]
FEW = ["--max_steps", "12", "--batch_size", "8", "--device", "cpu", "--pytorch_threads", "1"]
PPO = ["--total_time_steps", "1", "--max_iterations", "2", "--rollout_batch_size", "8", "--num_mini_batch", "2"]
PPO += ["--max_new_tokens", "8", "--device", "cpu", "--save_interval", "1", "--sample_interval", "1"]


def config(name: str) -> list[str]:
    return ["--config", str(ROOT / "configs" / name)]


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    """A folder in which every stage ran, as `make quickstart` runs them in the project's own folder."""
    patch = pytest.MonkeyPatch()
    folder = tmp_path_factory.mktemp("pipeline")
    patch.chdir(folder)
    (folder / "runs").mkdir()
    for name, options in (("data", []), ("careless", ["--careless", "0.6"]), ("pairs", ["--pairs", "60"])):
        source = ["--output", f"runs/quickstart_{name}", "--num_dialogues", "60"]
        assert write_dialogues.main([*source, *options]) == 0
    assert train_sft([*config("sft_quickstart.yaml"), *MODEL, *FEW]) == 0
    assert train_intent_classifier([*config("intent_quickstart.yaml"), *CLASSIFIER, *FEW]) == 0
    assert train_preference_model([*config("preference_quickstart.yaml"), *FEW, "--num_samples", "8"]) == 0
    assert main([*config("quickstart.yaml"), *PPO]) == 0
    agents = ["--agent", "runs/quickstart/agent", "--baseline", "runs/quickstart_sft"]
    output = ["--output", "runs/quickstart/evaluation.json", "--replies", "runs/quickstart/replies.jsonl"]
    output += ["--max_prompts", "10"]
    assert load_script("scripts/evaluate.py").main([*agents, *config("quickstart_score.yaml"), *output]) == 0
    yield folder
    patch.undo()


def test_every_stage_leaves_what_the_next_one_reads(pipeline):
    assert {path.name for path in pipeline.iterdir()} == {"runs"}
    names = ("data", "careless", "pairs", "sft", "intent", "preference")
    assert {path.name for path in (pipeline / "runs").iterdir()} == {"quickstart", *(f"quickstart_{x}" for x in names)}
    lines = (pipeline / "runs/quickstart/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["iteration"] for line in lines] == [1, 2]
    for row in map(json.loads, lines):
        parts = [name for name in row if name.startswith("reward/") and name.endswith("_weighted")]
        titles = {name.split("/")[1].removesuffix("_weighted") for name in parts}
        assert {"intent", "length_match", "reward_model"} < titles
        assert any(name.startswith("meteor") for name in titles)
        assert row["objective/score"] == pytest.approx(sum(row[name] for name in parts), abs=1e-5)
    result = json.loads((pipeline / "runs/quickstart/evaluation.json").read_text(encoding="utf-8"))
    assert set(result) == {"before", "after", "difference", "baselines", "local_names", "settings"}
    assert {"score", "intent_accuracy", "meteor", "length_match", "distinct_2"} < set(result["after"])
    assert result["baselines"]["true_replies"]["meteor"]["mean"] > 0.9
    assert result["baselines"]["true_replies"]["score"]["mean"] > result["after"]["score"]["mean"]
    assert isinstance(ChatAgent.load(pipeline / "runs/quickstart/agent").chat("Hello .", history=["Hi .", "Hi ."]), str)


def test_the_run_can_be_plotted_and_checked(pipeline, capsys, monkeypatch):
    assert plot_run.main(["--run", str(pipeline / "runs/quickstart")]) == 0
    assert (pipeline / "runs/quickstart/plot.png").stat().st_size > 10_000
    monkeypatch.setattr(quickstart_table, "BIAS_ITERATIONS", 2)
    words = ["--run", str(pipeline / "runs/quickstart")]
    assert load_script("scripts/check_quickstart.py").main(words) in (0, 1)
    assert "KL per token, last 5 iterations" in capsys.readouterr().out
    assert quickstart_table.main(words) in (0, 1)
    said = capsys.readouterr().out
    assert re.search(r"SFT, learned bias, 1: at most 40% of the gain in replies that fit: \S+", said)
