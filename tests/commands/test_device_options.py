"""One rule of device and precision: `auto` is the default of every command, YAML and function."""

import ast
from importlib import import_module

import pytest

from rlhf_dialog.commands.dispatcher import COMMANDS
from rlhf_dialog.commands.options import Options, make_parser
from rlhf_dialog.config.settings import Settings
from rlhf_dialog.feedback.commands import feedback, serve  # noqa: F401  its commands
from tests.parts.processes import ROOT


def below(cls):
    """The classes that inherit from this one."""
    return {cls} | {one for child in cls.__subclasses__() for one in below(child)}


@pytest.fixture(scope="module")
def defaults():
    """class -> option or key -> default, of all commands: as argparse has them, and of the YAML's schemas."""
    for command in COMMANDS.values():
        import_module(command.module.partition(":")[0])
    kinds = [kind for kind in below(Options) if kind.__module__.startswith("rlhf_dialog")]
    found = {one.__name__: {x.dest: x.default for x in make_parser(one, None, None)._actions} for one in kinds}
    schemas = [one for one in below(Settings) if one.__module__.startswith("rlhf_dialog")]
    return found | {one.__name__: {k: x.default for k, x in one.model_fields.items()} for one in schemas}


def test_every_command_and_yaml_has_auto(defaults):
    asked = {name: keys for name, keys in defaults.items() if {"device", "precision"} & keys.keys()}
    drawing = {"EvaluateOptions", "ChatOptions", "ServeOptions", "EvaluatePolicyOptions"}
    training = {"Config", "SFTConfig", "IntentConfig", "PreferenceConfig", "RelevanceConfig", "BotSettings"}
    assert drawing | training | {"AuditOptions"} <= asked.keys()
    assert {value for keys in asked.values() for name, value in keys.items() if name in ("device", "precision")} == {
        "auto"
    }
    assert {keys["use_amp"] for keys in defaults.values() if "use_amp" in keys} == {None}
    assert all({"device", "precision"} <= asked[name].keys() for name in drawing | training)


@pytest.mark.slow
def test_no_function_of_the_package_has_a_default_of_cpu():
    found = []
    for path in sorted((ROOT / "rlhf_dialog").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.arguments):
                named = [*zip(node.args[::-1], node.defaults[::-1], strict=False)]
                named += zip(node.kwonlyargs, node.kw_defaults, strict=True)
                found += [(path.name, arg.arg) for arg, default in named if default and ast.unparse(default) == "'cpu'"]
    assert found == []
