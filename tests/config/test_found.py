"""The gate in front of what a file that was found asks for."""

import pytest

from rlhf_dialog.config.found import refusal, refuse
from rlhf_dialog.config.registry import Reach, Registry
from rlhf_dialog.errors import UserError


def test_a_class_passes_where_its_arguments_stay_in_the_folder(tmp_path):
    registry = Registry("thing")
    registry.register("reader", dict, Reach(files=("path",)))
    registry.register("silent", dict)
    (tmp_path / "inside.txt").touch()
    found = tmp_path / "agent.json"
    refuse(found, "part", registry, "reader", {"path": str(tmp_path / "inside.txt")})
    with pytest.raises(UserError, match=r"part\.args\.path: '/etc/passwd' is not in .*--trust_config"):
        refuse(found, "part", registry, "reader", {"path": "/etc/passwd"})
    with pytest.raises(UserError, match=r"part\.id: silent does not say what its arguments may reach"):
        refuse(found, "part", registry, "silent", {})
    refuse(found, "part", registry, "unknown", {})  # `create` refuses it by name


def test_the_sentence_names_file_keys_and_remedy(tmp_path):
    text = refusal(tmp_path, {"a.b": "it asks", "c": "it reads"})
    assert text.startswith(f"{tmp_path} was found, not named by you")
    assert "a.b: it asks; c: it reads" in text
    assert text.endswith("--trust_config")
