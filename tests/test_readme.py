"""The commands of the README and of the pages that go on from it name what exists, their snippets run."""

import json
import re
import runpy
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml

import rlhf_dialog.rewards  # noqa: F401
from rlhf_dialog.commands.dispatcher import COMMANDS
from rlhf_dialog.config.loading import load_config
from rlhf_dialog.config.registry import EnvironmentFactory, RewardFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.feedback.commands.feedback import SUBCOMMANDS
from rlhf_dialog.rewards.composite import build_reward
from tests.parts.ppo_runs import world as world
from tests.parts.processes import ROOT, environment, run_command

README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTINUED = [ROOT / "docs" / f"{name}.md" for name in ("RUNS", "EVALUATION", "EXTENDING")]
PAGES = "\n".join([README, *(path.read_text(encoding="utf-8") for path in CONTINUED)])


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGES, re.DOTALL)


def commands() -> list[str]:
    lines = (line for block in blocks("bash") for line in block.replace("\\\n", " ").splitlines() if line.strip())
    return list(dict.fromkeys(lines))


def files() -> dict[str, str]:
    """The files that the pages tell to save: blocks whose first line is `# name`."""
    named = (re.match(r"# (\S+\.(?:py|yaml))\n", block) for block in blocks("python") + blocks("yaml"))
    return {match[1]: match.string for match in named if match}


def knows_options(words: list[str], sources: Iterable[Path]) -> bool:
    """Whether one of these files has each option of the command, as a word or as a field of its options."""
    text = "".join(path.read_text(encoding="utf-8") for path in sources if path.is_file())
    given = [word for word in words if word.startswith("--")]
    return all(
        f'"{word}"' in text or re.search(rf"^    {word[2:]}: .* = option\(", text, re.MULTILINE) for word in given
    )


def names_what_exists(command: str) -> bool:
    words = command.split()
    if words[0] == "make":
        return f"\n{words[1]}:" in (ROOT / "Makefile").read_text()
    if words[0] == "source":
        return words[1:] == [".venv/bin/activate"]
    if words[0] == "echo":
        return isinstance(json.loads(re.findall("'(.*)'", command)[0]), dict)
    if words[0] == "pip":
        return words[1:] == ["install", "."]
    if words[0] == "rlhf-dialog":
        module = COMMANDS[words[1]][0] if words[1] != "--help" else "rlhf_dialog.commands.dispatcher"
        return knows_options(words, [ROOT / f"{module.replace('.', '/')}.py"])
    return words[0].endswith("python") and python_names_what_exists(words)


def python_names_what_exists(words: list[str]) -> bool:
    if words[1] == "-m":
        known = words[2] == "rlhf_dialog.feedback" and words[3] in SUBCOMMANDS
        return known and knows_options(words, (ROOT / "rlhf_dialog" / "feedback" / "commands").glob("*.py"))
    if not (ROOT / words[1]).is_file() and words[1] not in files():
        return False
    if words[1] == "train_ppo.py" or "--config" in words:
        config = words[words.index("--config") + 1]
        return (ROOT / "configs" / config).is_file() or config in files()
    name = Path(words[1]).stem  # a script of a few lines calls the command of its name; its parts share the first word
    parts = (ROOT / "rlhf_dialog").rglob(f"commands/**/{name.split('_')[0]}*.py")
    return knows_options(words, (ROOT / words[1], ROOT / "rlhf_dialog" / "chat.py", *parts))


def test_a_command_names_what_exists():
    assert len(commands()) > 20
    assert [command for command in commands() if not names_what_exists(command)] == []


def test_extending_it_takes_the_snippets_as_they_stand(tmp_path, monkeypatch):
    monkeypatch.setattr(RewardFactory, "classes", dict(RewardFactory.classes))
    exec(files()["my_train.py"], {"__name__": "readme"})
    (tmp_path / "polite.yaml").write_text(files()["polite.yaml"])
    config = load_config(tmp_path / "polite.yaml")
    (beside,) = (yaml.safe_load(block)["reward_class"] for block in blocks("yaml") if block not in files().values())
    dialogue = Dialogue(["Tea ?"], response="Yes , madam .", reference="Yes , madam .")
    assert build_reward(config.reward_class.id, config.reward_class.args)([dialogue]) == [1.0]
    assert build_reward(beside["id"], beside["args"])([dialogue]) == [pytest.approx(0.2 + 0.8, abs=0.05)]


@pytest.mark.slow
def test_a_function_is_the_reward_of_a_run_from_python(world, tmp_path, monkeypatch):
    """my_function.py of the page, on a model and data of the tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(RewardFactory, "classes", dict(RewardFactory.classes))
    places = {"runs/quickstart_sft": str(world / "model"), "my_prompts.jsonl": str(world / "data")}
    settings = files()["polite.yaml"] + "max_new_tokens: 8\nmax_prompt_length: 60\n"
    for text, replacement in places.items():
        assert text in settings
        settings = settings.replace(text, replacement)
    (tmp_path / "polite.yaml").write_text(settings)
    (tmp_path / "my_function.py").write_text(files()["my_function.py"])
    runpy.run_path("my_function.py", run_name="__main__")
    assert (tmp_path / "polite_agent" / "model.safetensors").is_file()
    saved = yaml.safe_load((tmp_path / "run_results" / "from_python" / "config.yaml").read_text())
    assert saved["reward_class"] == {"id": "politeness", "args": {}}


def test_an_evaluator_of_ones_own_judges_the_dialogue():
    exec(files()["my_guest.py"], {"__name__": "readme"})
    environment = EnvironmentFactory.classes.pop("PhoneNumber")()
    environment.reset(seed=7)
    ended = False
    for reply in ("How about the amber lemon ? Its phone is 01632 960700 .", *["Goodbye ."] * 25):
        if not ended:
            _, _, terminated, truncated, info = environment.step(reply)
            ended = terminated or truncated
    assert info["success"] is True


@pytest.mark.slow
def test_an_environment_of_ones_own_takes_the_place_of_the_files_with_its_arguments(tmp_path):
    (tmp_path / "my_guest.py").write_text(files()["my_guest.py"])
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    page = (ROOT / "docs" / "EXTENDING.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"`python (my_guest\.py [^`]+)`", page)
    shown = run_command(sys.executable, *command.split(), "--print_config", cwd=tmp_path, env=environment())
    assert shown.returncode == 0, shown.stderr
    chosen = yaml.safe_load(shown.stdout)["environment"]
    assert (chosen["id"], chosen["args"]) == ("PhoneNumber", {})


@pytest.fixture
def after_the_quickstart(tmp_path):
    """A folder in which the README's commands find what `make quickstart` left, and may write."""
    parts = ("", "_data", "_careless", "_pairs", "_sft", "_intent", "_preference")
    made = [ROOT / "runs" / f"quickstart{part}" for part in parts]
    if not all(path.is_dir() for path in made):
        pytest.skip("make quickstart has not been run")
    (tmp_path / "runs").mkdir()
    folders = [ROOT / name for name in ("configs", "examples", "scripts", "reward_models")]
    for path in (*made, *folders, ROOT / "train_ppo.py", ROOT / "chat.py"):
        (tmp_path / path.relative_to(ROOT)).symlink_to(path)
    for name, text in files().items():
        (tmp_path / name).write_text(text)
    (tmp_path / "from_python.py").write_text(next(block for block in blocks("python") if "ppo_agent" in block))
    return tmp_path


@pytest.mark.slow
def test_the_commands_and_snippets_run_after_the_quickstart(after_the_quickstart):
    """All but those that need DailyDialog or wait for somebody to talk."""
    runnable = [c for c in commands() if c.startswith("echo") or "quickstart" in c or "feedback" in c]
    runnable = [c for c in runnable if not c.startswith("make") and "chat.py" not in c and " serve " not in c]
    assert len(runnable) == 12
    own = [c for c in commands() if "my_train.py" in c or "my_rewards.py" in c]
    for command in (*runnable, *own, "python first_run.py", "python from_python.py"):
        words = re.sub(r"^(\S*/)?python", sys.executable, command)
        done = run_command("bash", "-c", words, cwd=after_the_quickstart, env=environment(OMP_NUM_THREADS=None))
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    gate = json.loads((after_the_quickstart / "runs" / "bot" / "lineage.json").read_text())["versions"]["0002"]["gate"]
    assert gate["num_events"] == 40
    assert gate["why"].startswith(("promoted: ", "refused: "))
    metrics = (after_the_quickstart / "run_results" / "polite" / "metrics.jsonl").read_text().splitlines()
    assert len(metrics) == 3
    assert "reward/politeness" in json.loads(metrics[-1])
    first = (after_the_quickstart / "run_results" / "ppo" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["iteration"] for line in first] == [1, 2, 3]
    asked = (after_the_quickstart / "run_results" / "asked" / "metrics.jsonl").read_text().splitlines()
    assert {"reward/politeness", "response/questions"} <= set(json.loads(asked[-1]))
    assert (after_the_quickstart / "ppo_agent" / "model.safetensors").is_file()
