"""CONTRIBUTING.md: its recipes are applied to a copy of the repository, where their tests and commands run."""

import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from tests.parts.processes import ROOT, environment, run_command

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
FILES, EDITS = (
    [block.removeprefix("# ").split("\n", 1) for language, block in BLOCKS if language in languages]
    for languages in (("python", "yaml"), ("diff",))
)
COMMANDS = [line for language, block in BLOCKS if language == "bash" for line in block.splitlines()]
TESTS = [words for words in map(shlex.split, COMMANDS) if words[:3] == ["python", "-m", "pytest"]]
RECIPES = {recipe.split("\n")[0].split()[-1]: recipe for recipe in PAGE.split("\n### ")[1:]}
PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider")
COPIED = (
    "rlhf_dialog",
    "benchmarks",
    "examples",
    "experiments",
    "tests",
    "docs",
    "scripts",
    "configs",
    "pyproject.toml",
    "train_ppo.py",
)


def edited(text: str, edit: str) -> str:
    """The text with the hunks of a diff without line numbers, each in the one place that it fits, + lines alone at the end."""
    for hunk in re.split(r"^@@\n", edit, flags=re.MULTILINE):
        lines = hunk.splitlines(keepends=True)
        before, after = ("".join(line[1:] for line in lines if line[0] in marks) for marks in (" -", " +"))
        assert before == "" or text.count(before) == 1, hunk
        text = text.replace(before, after) if before else text + after
    return text


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """A copy of the repository with all recipes applied."""
    folder = tmp_path_factory.mktemp("house")
    for name in COPIED:
        source = ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, folder / name)
    for path, source in FILES:
        assert not (folder / path).exists(), path
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(source, encoding="utf-8")
    for path, edit in EDITS:
        (folder / path).write_text(edited((folder / path).read_text(encoding="utf-8"), edit), encoding="utf-8")
    return folder


def run_in(house, *words):
    """A command in the copy, with its package: its output; it must end with code 0."""
    done = run_command(*words, cwd=house, env=environment(PYTHONPATH=str(house)))
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_there_are_six_recipes_with_a_test_and_a_command_each():
    assert list(RECIPES) == ["reward", "metric", "estimator", "policy", "format", "command"]
    for recipe in RECIPES.values():
        assert "\npython -m pytest tests/" in recipe
        assert len(re.findall(r"^python ", recipe, re.MULTILINE)) >= 2
    assert 2 * len(BLOCKS) == PAGE.count("```")


def test_the_commands_links_and_marks_exist():
    makefile, settings = ((ROOT / name).read_text(encoding="utf-8") for name in ("Makefile", "pyproject.toml"))
    assert all(f"\n{line.split()[1]}:" in makefile for line in COMMANDS if line.startswith("make"))
    assert all((ROOT / target).is_file() for target in re.findall(r"\]\(([^)]+)\)", PAGE))
    marks = re.findall(r'^    "(\w+): ', settings, re.MULTILINE)
    assert len(marks) == 9
    assert all(f"`{mark}`" in PAGE for mark in marks)


def test_an_edit_that_fits_no_place_or_two_is_an_error():
    assert edited("a\nb\n", " a\n+x\n b\n") == "a\nx\nb\n"
    assert edited("a\nb\n", "-a\n+x\n@@\n+end\n") == "x\nb\nend\n"
    for edit in (" c\n+x\n", " a\n+x\n"):
        with pytest.raises(AssertionError):
            edited("a\nb\na\n", edit)


@pytest.mark.ci
def test_the_tests_of_the_recipes_pass(house):
    chosen = [(words[3], words[5] if words[4:5] == ["-k"] else Path(words[3]).stem) for words in TESTS]
    paths = dict.fromkeys(path for path, _ in chosen)
    out = run_in(house, *PYTEST, "-v", "-k", " or ".join(keyword for _, keyword in chosen), *paths)
    passed = [line for line in out.splitlines() if " PASSED" in line]
    for path, keyword in chosen:
        assert any(line.startswith(f"{path}::") and keyword in line for line in passed), path


@pytest.mark.ci
@pytest.mark.parametrize(
    ("recipe", "shown"),
    [
        ("reward", "id: Politeness"),
        ("metric", "id: QuestionShare"),
        ("estimator", "advantage_estimator: dr_grpo"),
        ("policy", "dialogue 0, goal: "),
        ("format", "turns=['Is it far ?', 'Two streets .', 'Then I will walk .'], acts=[2, 1, 4]"),
        ("command", "my_dialogues.jsonl: 1 dialogues, 2 turns\n" * 2),
    ],
)
def test_the_commands_of_a_recipe_show_that_it_works(house, recipe, shown):
    commands = [line for line in RECIPES[recipe].splitlines() if line in COMMANDS and "pytest" not in line]
    out = "".join(run_in(house, "bash", "-c", re.sub(r"^python", sys.executable, line)) for line in commands)
    assert shown in out


@pytest.mark.ci
def test_the_copy_keeps_the_rules(house):
    """The layout, the style, and the generated page with the new names."""
    run_in(house, sys.executable, "scripts/write_config_docs.py")
    page = (house / "docs" / "CONFIG.md").read_text(encoding="utf-8")
    assert all(name in page for name in ("Politeness", "QuestionShare", "dr_grpo"))
    rules = (
        "a_folder_imports_only_from_lower_floors",
        "the_pipeline_imports_no_wing_and_no_wing_another",
        "functions_are_short",
        "no_module_imports_itself_through_others",
    )
    run_in(house, *PYTEST, "-q", *(f"tests/test_architecture.py::test_{rule}" for rule in rules))
    sources = [path for path, _ in FILES + EDITS if path.endswith(".py")]
    for words in (("check",), ("format", "--check")):
        run_in(house, sys.executable, "-m", "ruff", *words, "--no-cache", *sources)


def test_make_test_all_installs_what_its_tests_need():
    """Without deepspeed its tests are skipped, and nobody sees it."""
    printed = run_command("make", "--dry-run", "--assume-new=pyproject.toml", "test-all", cwd=ROOT).stdout
    install, tests = printed.index('".[dev,deepspeed,experiments]"'), printed.index('-m pytest -q -n 2 -m ""')
    assert install < tests
