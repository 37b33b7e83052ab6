"""The house: which folder imports which (docs/ARCHITECTURE.md has the table), what must not be imported where, what is public."""

import ast
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import rlhf_dialog

PACKAGE = Path(rlhf_dialog.__file__).parent
ROOT = PACKAGE.parent
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")
PATHS = [str(path.relative_to(PACKAGE)) for path in MODULES]


def table(text: str) -> dict[str, int]:
    """Folder or file of the package -> its floor, from rows such as "| 5 | `evaluation/`, `distributed/` | ... |"."""
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", text, re.MULTILINE)
    return {name.strip("/"): int(floor) for floor, cell in rows for name in re.findall(r"`([^`]+)`", cell)}


FLOORS = table((ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8"))


def imports(source: str) -> set[str]:
    """The dotted names that the source imports anywhere: inside of functions, for type checking, by `import_module("...")`.

    A relative import counts as ours.
    """
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = f"rlhf_dialog.{node.module or ''}".rstrip(".") if node.level else str(node.module)
            found |= {f"{base}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found |= {text.value for text in node.args[:1] if isinstance(text, ast.Constant)}
    return found


def ours(source: str) -> set[str]:
    """The dotted names below rlhf_dialog that the source imports, without the package's own name."""
    return {name.removeprefix("rlhf_dialog.") for name in imports(source) if name.startswith("rlhf_dialog.")}


def place(path: str) -> str:
    """`rewards` for rewards/intent.py, `errors.py` for errors.py."""
    return path.split("/")[0]


def floor(name: str) -> int:
    """The floor of the folder or file that a dotted name begins with; a name of the package itself lies on top."""
    first = name.split(".")[0]
    return FLOORS.get(first, FLOORS.get(f"{first}.py", 99))


def climbs(path: str, source: str) -> set[str]:
    """What the file imports from its own floor or above, outside of its own folder."""
    own = FLOORS["__main__.py" if path == "feedback/__main__.py" else place(path)]
    return {name for name in ours(source) if name.split(".")[0] != place(path) and floor(name) >= own}


@pytest.mark.parametrize("path", PATHS)
def test_a_folder_imports_only_from_lower_floors(path):
    assert place(path) in FLOORS, f"{path}: give {place(path)} a floor in the table of docs/ARCHITECTURE.md"
    assert climbs(path, (PACKAGE / path).read_text(encoding="utf-8")) == set()


def test_the_table_sees_what_climbs():
    assert climbs("config/loading.py", "def f():\n    from rlhf_dialog.training import trainer") == {"training.trainer"}
    assert climbs("data/prompts.py", "from rlhf_dialog.config.schema import Config") == {"config.schema.Config"}
    assert climbs("rewards/intent.py", "from rlhf_dialog.rewards.base import BaseReward") == set()
    assert climbs("training/ppo.py", "from . import PPOAgent") == {"PPOAgent"}
    assert climbs("errors.py", "import rlhf_dialog.atomic_files") == {"atomic_files"}


def test_every_folder_of_the_table_is_there():
    assert {name for name in FLOORS if not (PACKAGE / name).exists()} == set()


def in_order(sources: dict[str, str]) -> list[str]:
    """The modules in an order in which each follows what it imports. Raises CycleError with the circle where there is one."""
    graph = {module: {module_of(name) for name in ours(source)} - {module, None} for module, source in sources.items()}
    for (
        module
    ) in graph:  # a package's own __init__ is loaded with each of its modules, and imports nothing of its users
        graph[module] = {name for name in graph[module] if not module.startswith(f"{name}.")}
    return list(TopologicalSorter(graph).static_order())


def test_no_module_imports_itself_through_others():
    assert in_order({module: (PACKAGE / path).read_text(encoding="utf-8") for module, path in KNOWN.items()})


def test_a_circle_cannot_hide():
    hidden = "def f():\n    import_module('rlhf_dialog.feedback.preference_night')"
    typed = "if TYPE_CHECKING:\n    from rlhf_dialog.feedback.night import learn"
    with pytest.raises(CycleError):
        in_order({"feedback.night": hidden, "feedback.preference_night": typed})


WINGS = {  # whose a file is, by the beginning of its path; of several the longest counts, and all else is the pipeline's
    "task_oriented": (
        *("data/domains/", "data/episode_stack.py", "environments/", "policies/"),
        *("evaluation/fidelity", "evaluation/logistic.py", "evaluation/policy_", "evaluation/seed_intervals.py"),
        *("evaluation/two_sample.py", "runs/policy_", "runs/person_run.py"),
        *("commands/train_policy.py", "commands/train_with_person.py", "commands/evaluate_policy.py"),
        *("commands/evaluate_dialogues.py", "commands/benchmark_policies", "commands/benchmark_language_model.py"),
        *("commands/compare_users.py", "commands/user_talks.py", "commands/chat_environment.py"),
        "commands/write_restaurant.py",
    ),
    "feedback": ("feedback/", "commands/feedback", "commands/chat_bot.py", "commands/chat_words.py"),
    "pipeline": (
        *("environments/__init__.py", "environments/base.py", "environments/adapters.py", "environments/built_in.py"),
        *("environments/corpus.py", "environments/single_turn.py", "environments/spaces.py"),
        "environments/text_level.py",
    ),
    "programs": (  # which stand on all of them
        *("commands/benchmark", "commands/month.py", "feedback/people.py", "feedback/simulation.py"),
        "evaluation/liked_plot.py",
    ),
    "table": ("wings.py",),
}
BEGINNINGS = {beginning: wing for wing, beginnings in WINGS.items() for beginning in beginnings}
KNOWN = {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in PATHS}
STARTED = {"commands/dispatcher.py": {"commands.benchmark"}}  # a program that the pipeline's dispatcher names


def module_of(name: str) -> str | None:
    """The module of a dotted name, which may go on with what the module holds."""
    while name and name not in KNOWN:
        name = name.rpartition(".")[0]
    return name or None


def wing_of(path: str) -> str:
    """The wing of a file, or `pipeline`."""
    fitting = [beginning for beginning in BEGINNINGS if path.startswith(beginning)]
    return BEGINNINGS[max(fitting, key=len)] if fitting else "pipeline"


def named(source: str) -> set[str]:
    """The modules that the source imports, or names in a text (as tables do, of what is loaded later)."""
    texts = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    paths = {text.partition(":")[0] for text in texts if isinstance(text, str) and text.startswith("rlhf_dialog.")}
    return {
        module
        for name in ours(source) | {path.removeprefix("rlhf_dialog.") for path in paths}
        if (module := module_of(name))
    }


def strays(path: str, source: str) -> set[str]:
    """The modules of a wing that a file names from outside of it."""
    free = {"pipeline", "table", wing_of(path)}
    return {module for module in named(source) - STARTED.get(path, set()) if wing_of(KNOWN[module]) not in free}


@pytest.mark.parametrize("path", [path for path in PATHS if wing_of(path) not in ("table", "programs")])
def test_the_pipeline_imports_no_wing_and_no_wing_another(path):
    assert strays(path, (PACKAGE / path).read_text(encoding="utf-8")) == set()


def test_the_wings_see_what_strays():
    acts = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from rlhf_dialog.policies.base import Policy"
    assert strays("commands/chat.py", acts) == {"policies.base"}
    assert strays("commands/train_policy.py", acts) == set()
    assert strays("commands/chat_environment.py", "import rlhf_dialog.feedback.talk") == {"feedback.talk"}
    assert strays("runs/agent.py", "f = lambda: import_module('rlhf_dialog.feedback.bot')") == {"feedback.bot"}
    assert strays("runs/agent.py", "PLACE = 'rlhf_dialog.policies.ppo:PPO'") == {"policies.ppo"}
    assert strays("feedback/talk.py", "from rlhf_dialog.models.generation import Sampling") == set()


def test_every_beginning_is_that_of_a_file():
    assert [one for one in BEGINNINGS if not any(path.startswith(one) for path in PATHS)] == []


LOADS_ITS_MODEL = "environments/users/language_model.py"  # in a function: its own test imports it without torch
WITHOUT_TORCH = [
    path
    for path in PATHS
    if (place(path) in ("data", "metrics", "environments", "config") and path != LOADS_ITS_MODEL)
    or path in tuple(f"feedback/{name}.py" for name in ("store", "schema", "bot", "settings", "examples", "gate"))
    or path in ("rewards/base.py", "rewards/length.py", "rewards/scoring.py", "commands/command_line.py")
]


@pytest.mark.parametrize("path", WITHOUT_TORCH)
def test_what_speaks_text_has_no_tensors(path):
    assert not {name for name in imports((PACKAGE / path).read_text(encoding="utf-8")) if name.split(".")[0] == "torch"}


def test_the_mathematics_import_torch_and_masks_alone():
    found = imports((PACKAGE / "training" / "ppo.py").read_text(encoding="utf-8"))
    assert {name.split(".")[0] for name in found} <= {"dataclasses", "math", "torch", "typing", "rlhf_dialog"}
    assert {name for name in found if name.startswith("rlhf_dialog") and ".models.masks." not in name} == set()


@pytest.mark.parametrize(
    ("first", "heavy"),
    [
        ("import rlhf_dialog", {"torch", "transformers", "datasets", "yaml", "pydantic"}),
        (
            "import rlhf_dialog.rewards, rlhf_dialog.config.loading",
            {"torch", "transformers", "datasets", "nltk", "wandb"},
        ),
    ],
)
def test_importing_the_package_loads_no_heavy_library_and_opens_no_connection(first, heavy):
    program = (
        "import socket, sys\n"
        "def refuse(*_): raise AssertionError('a connection at import')\n"
        "socket.socket.connect = refuse\n"
        f"{first}\n"
        f"print(sorted({heavy!r} & set(sys.modules)))\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ran.stdout.strip(), ran.returncode) == ("[]", 0), ran.stderr


def test_the_public_names():
    assert len(rlhf_dialog.__all__) <= 20
    assert sorted(set(rlhf_dialog.__all__)) == list(rlhf_dialog.__all__)
    for name in rlhf_dialog.__all__:
        assert getattr(getattr(rlhf_dialog, name), "__name__", name) == name
    kept = {"PPOAgent", "ChatAgent", "BaseReward", "RewardFactory", "VecInfo", "VecInfoFactory"}
    assert kept <= set(rlhf_dialog.__all__) <= set(dir(rlhf_dialog))
    with pytest.raises(AttributeError, match="no attribute 'PPONet'"):
        _ = rlhf_dialog.PPONet


def test_no_module_for_whatever_is_left_over():
    names = {part.removesuffix(".py") for path in PATHS for part in path.split("/")}
    assert not names & {"utils", "util", "common", "helpers", "helper", "misc"}


@pytest.mark.parametrize("path", PATHS)
def test_files_and_functions_are_short(path):
    source = (PACKAGE / path).read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 400
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    assert {f.name: n for f in functions if (n := (f.end_lineno or 0) - f.lineno + 1) > 60} == {}


@pytest.mark.parametrize("path", [path for path in PATHS if place(path) != "commands"])
def test_only_commands_print(path):
    calls = [
        node for node in ast.walk(ast.parse((PACKAGE / path).read_text(encoding="utf-8"))) if isinstance(node, ast.Call)
    ]
    assert not [node.lineno for node in calls if isinstance(node.func, ast.Name) and node.func.id == "print"]


def test_every_folder_says_what_it_is():
    for init in (path for path in MODULES if path.name == "__init__.py"):
        assert ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))), (
            f"{init}: say in a docstring what the folder is"
        )


WITHOUT_MIRROR = {
    "__main__.py": "a call of the dispatcher: commands/test_dispatcher.py starts it as a process",
    "feedback/__main__.py": "a call of commands/feedback.py: commands/test_feedback.py starts it as a process",
    "chat.py": "two lines for old imports of chat: commands/test_chat.py",
}


@pytest.mark.parametrize("path", [path for path in PATHS if not path.endswith("__init__.py")])
def test_each_module_has_its_mirror(path):
    if path in WITHOUT_MIRROR:
        return
    folder, _, name = path.rpartition("/")
    assert (ROOT / "tests" / folder / f"test_{name}").is_file(), (
        f"the tests of {path} belong in tests/{folder}/test_{name}"
    )
