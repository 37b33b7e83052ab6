"""What import-linter does not say: folders in the page, what loads at import, the public names, the offers of the wings."""

import re
import tomllib
from pathlib import Path

import pytest

import rlhf_dialog
from rlhf_dialog import wings
from rlhf_dialog.config.registry import EnvironmentFactory, Registry
from tests.parts.processes import output_of

PACKAGE = Path(rlhf_dialog.__file__).parent
ROOT = PACKAGE.parent
LINTER = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
WINGS = ("task_oriented", "feedback")
LAYERS = {
    f"{contract['containers'][0]}.{name}".removeprefix("rlhf_dialog.")
    for contract in LINTER["contracts"]
    if contract["type"] == "layers"
    for layer in contract["layers"]
    for name in layer.split(" | ")
} - {*WINGS, "feedback.__main__"}


def test_every_folder_has_a_line_in_the_page():
    """`exhaustive` contracts make import-linter refuse a folder without a layer."""
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| \d+ \| ([^|]+) \|", page, re.MULTILINE)
    listed = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    assert {name.rstrip("/").removesuffix(".py").replace("/", ".") for name in listed} == LAYERS


def test_importing_the_package_loads_no_heavy_library_and_opens_no_connection():
    program = (
        "import socket, sys\n"
        "def refuse(*_): raise AssertionError('a connection at import')\n"
        "socket.socket.connect = refuse\n"
        "import rlhf_dialog\n"
        "print(sorted({'torch', 'transformers', 'datasets', 'yaml', 'pydantic'} & set(sys.modules)))\n"
        "import rlhf_dialog.rewards, rlhf_dialog.config.loading\n"
        "print(sorted({'torch', 'transformers', 'datasets', 'nltk', 'wandb'} & set(sys.modules)))\n"
    )
    assert output_of("-c", program).splitlines() == ["[]", "[]"]


def test_the_public_names():
    assert sorted(set(rlhf_dialog.__all__)) == list(rlhf_dialog.__all__)
    for name in rlhf_dialog.__all__:
        assert getattr(getattr(rlhf_dialog, name), "__name__", name) == name
    kept = {"PPOAgent", "ChatAgent", "BaseReward", "RewardFactory", "VecInfo", "VecInfoFactory"}
    assert kept <= set(rlhf_dialog.__all__) <= set(dir(rlhf_dialog))
    with pytest.raises(AttributeError, match="PPONet"):
        _ = rlhf_dialog.PPONet


PLACES = {
    place
    for wing in wings.WINGS
    for places in (*wing.registered.values(), wing.chat, wing.settings)
    for place in places.values()
}


def test_what_a_wing_offers_is_there():
    assert [place for place in sorted(PLACES) if not callable(wings.load(place))] == []


def test_what_a_wing_offers_is_known_by_its_name_before_it_is_loaded():
    program = (
        "import sys\n"
        "from rlhf_dialog.config.registry import EnvironmentFactory\n"
        "print(EnvironmentFactory.names())\n"
        "print([name for name in sys.modules if name.startswith(('rlhf_dialog.environments', 'numpy'))])\n"
        "print(EnvironmentFactory.find('restaurant').__module__)\n"
    )
    names = "['language_model_user', 'restaurant']"
    assert output_of("-c", program).splitlines() == [names, "[]", "rlhf_dialog.task_oriented.world.restaurant"]


def test_a_class_of_the_users_replaces_what_is_offered_for_one_kind_of_registry(monkeypatch):
    monkeypatch.setattr(EnvironmentFactory, "classes", {"restaurant": dict})
    assert EnvironmentFactory.find("restaurant") is dict
    monkeypatch.setattr(EnvironmentFactory, "classes", {})
    assert EnvironmentFactory.find("restaurant") is not dict
    assert {"ppo", "handcrafted", "committee"} < set(Registry("policy").names()) - {"restaurant"}
    assert Registry("reward").names() == []
