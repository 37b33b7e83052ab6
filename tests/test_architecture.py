"""The layers: which module may import which, what may not be imported where, and what the package shows."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import rlhf_dialog

PACKAGE = Path(rlhf_dialog.__file__).parent
LAYERS = """
errors interrupts clock allocator masks synonyms estimators openmp
registry dialogue atomic_files ppo intervals predictions cpu_linear data evaluation
schema
config batch_plan
deepspeed_config
cli hub model_sizes free_memory
sources pretrained
metrics
rewards prompts packing lora environments
found_config
recompute module_files
policy
decoding
models
chat_template
generation training
chat_agent
episodes
rollout
world
launch random_states
checkpoint identity engine memory lockstep
deepspeed_engine
partitions sharing
tracking
branches
run_folder
chat
replies
measure report
minibatches checks summary
update
trainer
validation
run_state
agent
command
commands
__main__
"""
ORDER = {name: level for level, line in enumerate(LAYERS.split("\n")) for name in line.split()}
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def top(path: Path) -> str:
    """`rewards` for rlhf_dialog/rewards/intent.py, `config` for rlhf_dialog/config.py."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imports(source: str, name: str = "") -> set[str]:
    """The dotted names that the source imports anywhere, inside functions too; a relative import counts as ours."""
    found = set()
    for node in ast.walk(ast.parse(source, name)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = f"rlhf_dialog.{base}".rstrip(".")
            found |= {f"{base}.{alias.name}" for alias in node.names}
    return found


def ours(source: str) -> set[str]:
    """The top modules of rlhf_dialog that the source imports."""
    dotted = (name.split(".") for name in imports(source))
    return {parts[1] for parts in dotted if parts[0] == "rlhf_dialog" and len(parts) > 1}


def back_arrows(module: str, source: str) -> set[str]:
    """What `module` imports although it does not lie above it in the table."""
    return {name for name in ours(source) if name != module and ORDER.get(name, 99) >= ORDER[module]}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_to_layers_above(path):
    assert top(path) in ORDER, f"{path}: give the new module a place in LAYERS"
    assert back_arrows(top(path), path.read_text(encoding="utf-8")) == set()


def test_the_table_sees_a_back_arrow():
    assert back_arrows("config", "def f():\n    from rlhf_dialog.training.trainer import PPOTrainer") == {"trainer"}
    assert back_arrows("prompts", "from rlhf_dialog import models") == {"models"}
    assert back_arrows("ppo", "from . import registry") == {"registry"}
    assert back_arrows("agent", "import rlhf_dialog.config.loading, rlhf_dialog.unknown") == {"unknown"}
    assert back_arrows("rewards", "from rlhf_dialog.rewards.base import BaseReward") == set()


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("dialogue", "torch"),
        ("dialogue", "transformers"),
        ("rewards/base", "torch"),
        ("rewards/length", "torch"),
        ("metrics/text", "torch"),
        ("registry", "torch"),
        ("schema", "torch"),
        ("config", "torch"),
        ("cli", "torch"),
        *((f"sources/{path.stem}", "torch") for path in (PACKAGE / "sources").glob("*.py")),
        *((f"data/made_up/{path.stem}", "torch") for path in (PACKAGE / "data/made_up").glob("*.py")),
        ("ppo", "transformers"),
    ],
)
def test_what_speaks_text_has_no_tensors_and_what_speaks_tensors_no_models(module, forbidden):
    source = (PACKAGE / f"{module}.py").read_text(encoding="utf-8")
    assert not {name for name in imports(source) if name.split(".")[0] == forbidden}


def test_the_mathematics_import_torch_and_masks_alone():
    found = imports((PACKAGE / "ppo.py").read_text(encoding="utf-8"))
    assert {name.split(".")[0] for name in found} <= {"math", "dataclasses", "torch", "rlhf_dialog"}
    assert ours((PACKAGE / "ppo.py").read_text(encoding="utf-8")) == {"masks"}


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
    assert len(rlhf_dialog.__all__) <= 16
    assert sorted(set(rlhf_dialog.__all__)) == list(rlhf_dialog.__all__)
    for name in rlhf_dialog.__all__:
        assert getattr(getattr(rlhf_dialog, name), "__name__", name) == name
    kept = {"PPOAgent", "ChatAgent", "BaseReward", "RewardFactory", "VecInfo", "VecInfoFactory"}
    assert kept <= set(rlhf_dialog.__all__) <= set(dir(rlhf_dialog))
    with pytest.raises(AttributeError, match="no attribute 'PPONet'"):
        _ = rlhf_dialog.PPONet


def test_no_module_for_whatever_is_left_over():
    names = {part for path in MODULES for part in path.relative_to(PACKAGE).with_suffix("").parts}
    assert not names & {"utils", "util", "common", "helpers", "helper", "misc"}


def test_files_are_short():
    lengths = {str(path.relative_to(PACKAGE)): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {name: length for name, length in lengths.items() if length > 400} == {}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_the_chat_and_the_commands_print(path):
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    printing = [node.lineno for node in calls if isinstance(node.func, ast.Name) and node.func.id == "print"]
    assert not printing or path == PACKAGE / "chat.py" or top(path) == "commands"
