"""The layers of the package: what imports what, what is public, and what its wings offer."""

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import pytest
from setuptools import find_packages

import rlhf_dialog
from rlhf_dialog import wings
from rlhf_dialog.config.registry import EnvironmentFactory, Registry

PACKAGE = Path(rlhf_dialog.__file__).parent
ROOT = PACKAGE.parent
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")
PATHS = [str(path.relative_to(PACKAGE)) for path in MODULES]
SOURCES = {path: (PACKAGE / path).read_text(encoding="utf-8") for path in PATHS}


def table(text: str) -> dict[str, int]:
    """Folder or file of the package -> its floor, from rows such as "| 5 | `evaluation/`, `distributed/` | ... |"."""
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", text, re.MULTILINE)
    return {name.strip("/"): int(floor) for floor, cell in rows for name in re.findall(r"`([^`]+)`", cell)}


FLOORS = table((ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8"))


@cache
def nodes_of(source: str) -> list[Any]:
    return list(ast.walk(ast.parse(source)))


def imports(source: str) -> set[str]:
    """The dotted names that the source imports anywhere, inside functions too; a relative import counts as ours."""
    found = set()
    for node in nodes_of(source):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = f"rlhf_dialog.{node.module or ''}".rstrip(".") if node.level else str(node.module)
            found |= {f"{base}.{alias.name}" for alias in node.names}
    return found


def ours(source: str) -> set[str]:
    """The dotted names below rlhf_dialog that the source imports, without the package's own name.

    Imports for types and `import_module("...")` with a text count as well.
    """
    calls = [
        node for node in nodes_of(source) if isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func)
    ]
    texts = {
        one.value for node in calls for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)
    }
    return {name.removeprefix("rlhf_dialog.") for name in imports(source) | texts if name.startswith("rlhf_dialog.")}


WINGS = ("task_oriented", "feedback")


def place(path: str) -> str:
    """`rewards` for rewards/intent.py, `errors.py` for errors.py; in a wing two levels: `feedback/store`."""
    wing, _, rest = path.partition("/")
    return f"{wing}/{rest.partition('/')[0]}" if wing in WINGS and "/" in rest else wing


def wing_of(place_: str) -> str:
    """The wing of a place, or `pipeline`."""
    wing = place_.partition("/")[0]
    return wing if wing in WINGS else "pipeline"


def place_of(name: str) -> str:
    """The place of a dotted name; a name of the package itself has none."""
    module = module_of(name)
    return place(KNOWN[module]) if module else ""


def floor(place_: str) -> int:
    """The floor of a place; a name of the package itself lies on top."""
    return FLOORS.get(place_, 99)


def climbs(path: str, source: str) -> set[str]:
    """What the file imports from its own floor or above, outside of its own folder.

    A wing stands beside the pipeline: from there it may take what lies on its own floor.
    """
    own, here = floor(place(path)), place(path)

    def is_above(name: str) -> bool:
        there = place_of(name)
        beside = wing_of(here) != "pipeline" and wing_of(there) == "pipeline"
        return there != here and (floor(there) > own or (floor(there) == own and not beside))

    return {name for name in ours(source) if is_above(name)}


def test_every_folder_has_a_floor_in_the_table_of_the_page():
    assert {place(path) for path in PATHS} - set(FLOORS) - set(WINGS) == set()


def test_a_folder_imports_only_from_lower_floors():
    files = {path: source for path, source in SOURCES.items() if path != "feedback/__main__.py"}
    assert {path: found for path, source in files.items() if (found := climbs(path, source))} == {}


def test_the_table_sees_what_climbs():
    assert climbs("config/loading.py", "def f():\n    from rlhf_dialog.training import trainer") == {"training.trainer"}
    assert climbs("data/prompts.py", "from rlhf_dialog.config.schema import Config") == {"config.schema.Config"}
    assert climbs("rewards/intent.py", "from rlhf_dialog.rewards.base import BaseReward") == set()
    assert climbs("training/ppo.py", "from . import PPOAgent") == {"PPOAgent"}
    assert climbs("errors.py", "import rlhf_dialog.atomic_files") == {"atomic_files"}
    assert climbs("feedback/page/chat_session.py", "from rlhf_dialog.feedback.learning import gate") == {
        "feedback.learning.gate"
    }
    assert climbs("task_oriented/world/acts.py", "from rlhf_dialog.training import ppo") == {"training.ppo"}
    assert climbs("task_oriented/commands/train_policy.py", "from rlhf_dialog.commands import command_line") == set()


def test_every_folder_of_the_table_is_there():
    assert {name for name in FLOORS if not (PACKAGE / name).exists()} == set()


KNOWN = {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in PATHS}


def module_of(name: str) -> str | None:
    """The module of a dotted name, which may go on with what the module holds."""
    while name and name not in KNOWN:
        name = name.rpartition(".")[0]
    return name or None


def in_order(sources: dict[str, str]) -> list[str]:
    """The modules in an order in which each follows what it imports. Raises CycleError with the circle where there is one."""
    graph = {module: {module_of(name) for name in ours(source)} - {module, None} for module, source in sources.items()}
    for (
        module
    ) in graph:  # a package's own __init__ is loaded with each of its modules, and imports nothing of its users
        graph[module] = {name for name in graph[module] if not module.startswith(f"{name}.")}
    return list(TopologicalSorter(graph).static_order())


def test_no_module_imports_itself_through_others():
    assert in_order({module: SOURCES[path] for module, path in KNOWN.items()})


def test_a_circle_cannot_hide():
    hidden = "def f():\n    import_module('rlhf_dialog.feedback.learning.step_back')"
    typed = "if TYPE_CHECKING:\n    from rlhf_dialog.feedback.learning.night import learn"
    with pytest.raises(CycleError):
        in_order({"feedback.learning.night": hidden, "feedback.learning.step_back": typed})


def named(source: str) -> set[str]:
    """The modules that the source imports, or names in a text (as tables do, of what is loaded later)."""
    texts = [node.value for node in nodes_of(source) if isinstance(node, ast.Constant)]
    paths = {text.partition(":")[0] for text in texts if isinstance(text, str) and text.startswith("rlhf_dialog.")}
    names = ours(source) | {path.removeprefix("rlhf_dialog.") for path in paths}
    return {module for name in names if (module := module_of(name))}


def strays(path: str, source: str) -> set[str]:
    """The modules of a wing that a file names from outside of it."""
    free = {"pipeline", wing_of(path)}
    return {module for module in named(source) if wing_of(KNOWN[module]) not in free}


def test_the_pipeline_imports_no_wing_and_no_wing_another():
    files = {path: source for path, source in SOURCES.items() if path != "wings.py"}  # the one table that names them
    assert {path: found for path, source in files.items() if (found := strays(path, source))} == {}


def test_the_wings_see_what_strays():
    acts = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from rlhf_dialog.task_oriented.policies.base import Policy"
    assert strays("commands/chat.py", acts) == {"task_oriented.policies.base"}
    assert strays("task_oriented/commands/train_policy.py", acts) == set()
    assert strays("task_oriented/commands/chat_environment.py", "import rlhf_dialog.feedback.page.chat_session") == {
        "feedback.page.chat_session"
    }
    assert strays("runs/agent.py", "f = lambda: import_module('rlhf_dialog.feedback.store.bot')") == {
        "feedback.store.bot"
    }
    assert strays("runs/agent.py", "PLACE = 'rlhf_dialog.task_oriented.policies.ppo:PPO'") == {
        "task_oriented.policies.ppo"
    }
    assert strays("feedback/page/chat_session.py", "from rlhf_dialog.models.generation import Sampling") == set()


MODULES_BY_NAME = {  # the files that import a module whose name they were given
    "__init__.py": "the public names",
    "wings.py": "what the wings offer",
    "commands/dispatcher.py": "the commands",
    "feedback/commands/feedback.py": "the subcommands",
    "distributed/deepspeed_engine.py": "a library that may be missing",
}


def test_modules_are_imported_by_name_in_few_places():
    found = {path for path, source in SOURCES.items() if "import_module(" in source}
    assert found - set(MODULES_BY_NAME) == set()


LOADS_ITS_MODEL = "task_oriented/world/users/language_model.py"  # in a function: its own test imports it without torch
TEXT = ("data", "metrics", "environments", "config", "task_oriented/domains", "task_oriented/world")
WITHOUT_TORCH = [
    path
    for path in PATHS
    if (place(path) in TEXT and path != LOADS_ITS_MODEL)
    or place(path) == "feedback/store"
    or path in ("feedback/learning/gate.py", "wings.py")
    or path in ("rewards/base.py", "rewards/length.py", "rewards/scoring.py", "commands/command_line.py")
]


def test_what_speaks_text_has_no_tensors():
    assert len(WITHOUT_TORCH) > 100
    roots = {path: {name.split(".")[0] for name in imports(SOURCES[path])} for path in WITHOUT_TORCH}
    assert [path for path, found in roots.items() if "torch" in found] == []


def test_the_mathematics_import_torch_and_masks_alone():
    found = imports(SOURCES["training/ppo.py"])
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


def nodes(kind: type[ast.AST]) -> list[tuple[str, Any]]:
    """Path and node of everything of this kind in the package."""
    return [(path, node) for path in PATHS for node in nodes_of(SOURCES[path]) if isinstance(node, kind)]


STARTS_THE_BENCHMARKS = "commands/benchmark.py"  # where there is a checkout


def outside(source: str) -> set[str]:
    """The modules of experiments/ and benchmarks/ that the source imports, or whose path is a text in it."""
    texts = {node.value for node in nodes_of(source) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {name for name in imports(source) | texts if re.fullmatch(r"(experiments|benchmarks)([.:]\w+)*", name)}


def test_nothing_in_the_package_imports_experiments_or_benchmarks():
    files = {path: source for path, source in SOURCES.items() if path != STARTS_THE_BENCHMARKS}
    assert {path: names for path, source in files.items() if (names := outside(source))} == {}
    assert outside("import experiments.users\nPLACE = 'benchmarks.gpu:main'") == {
        "experiments.users",
        "benchmarks.gpu:main",
    }
    assert outside("HINT = 'python -m experiments.smollm2 fetch'") == set()


def test_the_wheel_holds_the_package_alone():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = find_packages(str(ROOT), include=project["tool"]["setuptools"]["packages"]["find"]["include"])
    assert {name.partition(".")[0] for name in packages} == {"rlhf_dialog"}


def test_functions_are_short():
    lines = {(path, f.name, f.lineno): (f.end_lineno or 0) - f.lineno + 1 for path, f in nodes(ast.FunctionDef)}
    assert {place: number for place, number in lines.items() if number > 60} == {}


def test_only_commands_print():
    calls = [(path, node) for path, node in nodes(ast.Call) if not place(path).endswith("commands")]
    prints = [
        (path, node.lineno) for path, node in calls if isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert prints == []


def test_every_folder_says_what_it_is():
    for init in (path for path in MODULES if path.name == "__init__.py"):
        assert ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))), (
            f"{init}: say in a docstring what the folder is"
        )


PLACES = {
    place
    for wing in wings.WINGS
    for places in (*wing.registered.values(), wing.chat, wing.settings)
    for place in places.values()
}


@pytest.mark.parametrize("place", sorted(PLACES))
def test_what_is_offered_is_there(place):
    assert callable(wings.load(place))


def test_what_a_wing_offers_is_known_by_its_name_before_it_is_loaded():
    program = (
        "import sys\n"
        "from rlhf_dialog.config.registry import EnvironmentFactory\n"
        "print(EnvironmentFactory.names())\n"
        "print([name for name in sys.modules if name.startswith(('rlhf_dialog.environments', 'numpy'))])\n"
        "print(EnvironmentFactory.find('restaurant').__module__)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    lines = ["['language_model_user', 'restaurant']", "[]", "rlhf_dialog.task_oriented.world.restaurant"]
    assert ran.stdout.splitlines() == lines, ran.stderr


def test_a_class_of_the_users_replaces_what_is_offered(monkeypatch):
    monkeypatch.setattr(EnvironmentFactory, "classes", {"restaurant": dict})
    assert EnvironmentFactory.find("restaurant") is dict
    monkeypatch.setattr(EnvironmentFactory, "classes", {})
    assert set(inspect.signature(EnvironmentFactory.find("restaurant")).parameters) == {
        "domain",
        "user",
        "max_turns",
        "line_length",
    }


def test_an_offer_is_for_one_kind_of_registry():
    known = Registry("policy").names()
    assert {"ppo", "handcrafted", "committee"} < set(known)
    assert "restaurant" not in known
    assert Registry("reward").names() == []
