"""The table of what the wings offer: everything in it is there, and nothing of it is loaded before it is asked for."""

import inspect
import subprocess
import sys

import pytest

from rlhf_dialog import wings
from rlhf_dialog.config.registry import EnvironmentFactory, Registry

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
