"""docs/COMING_FROM_TRL.md: its table names keys that exist, and its examples run."""

import re
import runpy

import pytest

from rlhf_dialog import RewardFactory, main
from rlhf_dialog.config.problems import walk
from rlhf_dialog.config.schema import Config
from rlhf_dialog.config.synonyms import HINTS
from tests.parts.ppo_runs import rows
from tests.parts.processes import ROOT

PAGE = (ROOT / "docs" / "COMING_FROM_TRL.md").read_text(encoding="utf-8")


def test_the_table_names_keys_that_exist():
    lines = [line.split("|") for line in PAGE.splitlines() if line.startswith("| ")]
    keys = {key for key, _ in walk(Config)}
    named = {name for line in lines[1:] for name in re.findall(r"`([\w.]+)(?:`|: )", line[2])}
    assert len(named) > 30
    assert named <= keys | {"RewardModel"}
    names_of_trl = {name for line in lines[1:] for name in re.findall(r"`(\w+)", line[1])}
    no_hint = {"AutoModelForCausalLMWithValueHead", "k3", "eos", "bnpo", "none"}  # no keys
    assert names_of_trl - keys - no_hint <= set(HINTS)


@pytest.mark.slow
def test_the_examples_of_the_page_run(world, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    settings = PAGE.split("```yaml\n")[1].split("```")[0]
    changes = {"runs/quickstart_sft": str(world / "model"), "runs/quickstart_data": str(world / "data")}
    for text, replacement in (changes | {": 512": ": 9", ": 64": ": 8"}).items():
        assert text in settings
        settings = settings.replace(text, replacement)
    (tmp_path / "run.yaml").write_text(f"{settings}max_prompt_length: 60\ndevice: cpu\n", encoding="utf-8")
    assert main(["--config", "run.yaml"]) == 0
    assert [row["episodes"] for row in rows(tmp_path / "runs" / "like_trl")] == [8, 16]
    capsys.readouterr()
    function, loop = (block.split("```")[0] for block in PAGE.split("```python\n")[1:])
    small = {'"rollout_batch_size": 64': '"rollout_batch_size": 8, "max_prompt_length": 60'}
    small |= {'"max_iterations": 6': '"max_iterations": 2', '"max_new_tokens": 24': '"max_new_tokens": 8'}
    for text, replacement in (changes | small).items():
        assert text in function
        function = function.replace(text, replacement)
    (tmp_path / "my_reward.py").write_text(function, encoding="utf-8")
    monkeypatch.setattr(RewardFactory, "classes", dict(RewardFactory.classes))
    runpy.run_path("my_reward.py")
    assert [row["episodes"] for row in rows(tmp_path / "runs" / "names_the_guest")] == [8, 16]
    capsys.readouterr()
    assert "* 16\nfor _ in range(8)" in loop
    exec(loop.replace("* 16\nfor _ in range(8)", "* 2\nfor _ in range(3)"), {})
    scores = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert (len(scores), float(scores[0][1])) == (3, 0.0)  # the KL of the start
    assert (tmp_path / "ppo_agent" / "model.safetensors").is_file()
