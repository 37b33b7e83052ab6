"""YAML of others: what is refused in a moment, and in a sentence."""

import pytest

from rlhf_dialog import yaml_files
from rlhf_dialog.config.loading import read_yaml
from rlhf_dialog.errors import UserError
from rlhf_dialog.yaml_files import parse_yaml

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 11)
)
MAPS = "a0: &a0 {k: v}\n" + "".join(f"a{i}: &a{i} {{k: *a{i - 1}, l: *a{i - 1}}}\n" for i in range(1, 40))
KEYS = "a0: &a0 [k]\n" + "".join(f"? &a{i} [*a{i - 1}, *a{i - 1}]\n: 1\n" for i in range(1, 40))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (LAUGHS, "100,000 values"),
        (MAPS, "100,000 values"),
        (KEYS, "100,000 values"),
        ("a: &a {b: *a}", "inside"),
        ("a: &a [[*a]]", "inside"),
        ("[" * 300, "200 levels"),
        ("- " * 300, "200 levels"),
        ("".join(f"{' ' * i}a:\n" for i in range(300)) + " " * 300 + "b", "200 levels"),
        ("{a: " * 150 + "&x [1]" + "}" * 150 + "\n", None),
        (
            f"- &a {'[' * 120}{']' * 120}\n- {'[' * 120}*a{']' * 120}",
            "200 levels",
        ),  # deep only with the alias written out
        (f"a: &a {'x' * 20_000}\nb: [{', '.join(['*a'] * 60)}]", "characters"),
        ("a: " + "1" * 5000, "digits"),
        ("a: 0x" + "f" * 5000, "digits"),
        ("a: " + "1" * 250, None),
        ("? " + "[" * 190 + "]" * 190 + "\n: 1", "key"),
        ("a: 1\na: 2", "twice"),
        *(
            (text, " ")
            for text in ("!!int ''", "!!bool foo", "!!timestamp x", "!!float abc", "!!map [a]", "2026-99-99")
        ),
        *(
            (text, " ")
            for text in ("a: [", "!!python/object:os.system x", "a: b\n---\nc: d", "\x00", "*a", "%YAML 3.0\n--- a")
        ),
    ],
)
def test_what_never_ends_or_is_no_yaml_is_one_sentence(tmp_path, text, words):
    path = tmp_path / "a.yaml"
    path.write_text(text, encoding="utf-8")
    if words is None:
        assert parse_yaml(text)
    else:
        with pytest.raises(UserError, match=words) as said:
            read_yaml(path)
        assert "\n" not in str(said.value)
        assert str(path) in str(said.value)
        assert len(str(said.value)) < 500


def test_nodes_count_without_aliases_too(monkeypatch):
    monkeypatch.setattr(yaml_files, "MAX_NODES", 100)
    assert len(parse_yaml(f"[{'1,' * 99}]")) == 99
    with pytest.raises(ValueError, match="100 values"):
        parse_yaml(f"[{'1,' * 100}]")


def test_a_file_is_read_up_to_its_limit_and_only_where_it_is_one(tmp_path, monkeypatch):
    monkeypatch.setattr(yaml_files, "MAX_BYTES", 1000)
    path = tmp_path / "a.yaml"
    path.write_text("a: 1\n" + "#" * 995)
    assert read_yaml(path) == {"a": 1}
    path.write_text("a: 1\n" + "#" * 996)
    for other, words in ((path, "bytes"), (tmp_path, "regular file"), (tmp_path / "none", "cannot be read")):
        with pytest.raises(UserError, match=words):
            read_yaml(other)
