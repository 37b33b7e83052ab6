"""A typed class becomes the options of a command: flags, help, checks and a frozen object."""

from pathlib import Path

import pytest

from rlhf_dialog.commands.options import (
    Options,
    PrecisionOption,
    YamlOptions,
    option,
    parse_options,
    run_command,
)
from rlhf_dialog.config.schema import Config
from rlhf_dialog.config.settings import Settings
from rlhf_dialog.training.supervised.settings import PreferenceConfig, SFTConfig


class DemoOptions(Options):
    description = "What the demo does."

    agent: Path = option("folder of the agent")
    max_prompts: int = option("at most 5 % of them; default 3", 3)
    rate: float | None = option("how quick")
    splits: tuple[str, ...] = option("default: train", ("train",), choices=("train", "test"))
    judge: tuple[str, ...] = option("may be given several times", form="repeated")
    greedy: bool = option("the most likely")
    left: str | None = option("one side", rivals="side")
    right: bool = option("the other side", rivals="side")


class DemoKeys(Settings):
    """Keys of the demo"""

    size: int = 3


class DemoYamlOptions(YamlOptions[DemoKeys]):
    schema = DemoKeys
    description = "What the run does."

    overwrite: bool = option("replace the run")
    resume: str = option("continue the run", "false", metavar="[auto]", form="bare")


def test_values_have_the_types_of_the_fields():
    assert parse_options(DemoOptions, ["--agent", "a"]) == DemoOptions(agent=Path("a"))
    words = "--agent ~/b --max-prompts=4 --rate 0.5 --splits test train --judge x --judge y --greedy --right --debug"
    assert parse_options(DemoOptions, words.split()) == DemoOptions(
        agent=Path.home() / "b",
        max_prompts=4,
        rate=0.5,
        splits=("test", "train"),
        judge=("x", "y"),
        greedy=True,
        right=True,
        debug=True,
    )


def test_the_help_has_every_option_with_its_meaning_and_debug_last(capsys):
    with pytest.raises(SystemExit) as end:
        parse_options(DemoOptions, ["--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert "What the demo does." in text
    assert "at most 5 % of them; default 3" in text
    names = ["--agent", "--max_prompts", "--rate", "--splits", "--judge", "--greedy", "--left", "--right", "--debug"]
    places = [text.index(f"\n  {name}") for name in names]
    assert places == sorted(places)


def test_keys_of_the_yaml_are_options_beside_those_of_the_command(tmp_path):
    (tmp_path / "demo.yaml").write_text("size: 4\n", encoding="utf-8")
    seen: list[DemoYamlOptions] = []
    words = ["--config", str(tmp_path / "demo.yaml"), "--size", "5", "--overwrite", "--resume", "auto"]
    assert run_command(DemoYamlOptions, seen.append, words) == 0
    assert (seen[0].settings.size, seen[0].overwrite, seen[0].resume, seen[0].debug) == (5, True, "auto", False)
    assert run_command(DemoYamlOptions, seen.append, ["--resume"]) == 0
    assert (seen[1].settings.size, seen[1].resume) == (3, "true")
    assert run_command(DemoYamlOptions, lambda options: 9, []) == 9


def test_the_machine_decides_where_and_in_which_precision_unless_it_is_said():
    for keys in (Config, SFTConfig, PreferenceConfig):
        defaults = [keys.model_fields[name].default for name in ("device", "precision", "use_amp")]
        assert defaults == ["auto", "auto", None]
    assert (PrecisionOption().device, PrecisionOption().precision) == ("auto", "auto")
