"""Read YAML that somebody else may have written: safe types, no key twice, and limits on size and depth.

Aliases make a short text stand for a tree that no loop over it ever ends: nodes and characters count as often as they are
referred to.
"""

from pathlib import Path
from typing import Any

import yaml

MAX_BYTES = 2**20  # of a file, and of the texts in it with aliases written out
MAX_NODES = 100_000  # values and keys
MAX_DEPTH = 200
MAX_DIGITS = 250  # of a whole number, which is then less than the largest float


class _Loader(yaml.SafeLoader):
    """Rejects duplicate keys, of which PyYAML takes the last one, and what exceeds the limits, before any value is built."""

    def __init__(self, text: str):
        super().__init__(text)
        self.depth = self.composed = 0
        self.sizes: dict[int, tuple[int, int, int]] = {}  # of each node, by `id`: nodes, levels, characters

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.depth += 1
        self.composed += 1
        self._check(self.composed, self.depth, 0)
        is_alias = self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        self.depth -= 1
        if node is not None and id(node) not in self.sizes:
            if is_alias:
                raise ValueError("an alias stands inside of what it refers to")
            self.sizes[id(node)] = self._measure(node)
        return node

    def _measure(self, node: yaml.Node) -> tuple[int, int, int]:
        if isinstance(node, yaml.ScalarNode):
            return 1, 1, len(node.value)
        pairs = [node.value] if isinstance(node, yaml.SequenceNode) else node.value
        inside = [self.sizes[id(child)] for pair in pairs for child in pair]
        nodes, levels, characters = zip((0, 0, 0), *inside, strict=True)
        return self._check(1 + sum(nodes), 1 + max(levels), sum(characters))

    def _check(self, nodes: int, levels: int, characters: int) -> tuple[int, int, int]:
        if nodes > MAX_NODES:
            raise ValueError(f"it holds more than {MAX_NODES:,} values, with aliases written out")
        if levels > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
        if characters > MAX_BYTES:
            raise ValueError(f"it holds texts of more than {MAX_BYTES:,} characters, with aliases written out")
        return nodes, levels, characters

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key '{key}' appears twice", key_node.start_mark)
            seen.add(key if isinstance(key, str) else id(key_node))
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        if len(node.value) > MAX_DIGITS:
            raise ValueError(f"a whole number has more than {MAX_DIGITS} digits")
        return int(super().construct_yaml_int(node))


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def parse_yaml(text: str) -> Any:
    """The value of a YAML text. Raises ValueError, on one line, when it is not YAML or exceeds a limit."""
    try:
        return yaml.load(text, Loader=_Loader)
    except RecursionError:
        raise ValueError("a key is nested too deeply") from None
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError) as error:  # the latter of a wrong !!tag
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from error


def read_text(path: Path) -> str:
    """The text of a YAML file. Raises OSError, or ValueError when it is too large or no text."""
    if path.exists() and not path.is_file():  # a pipe would wait for a writer
        raise ValueError("it is not a regular file")
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES:,} bytes")
    return content.decode("utf-8-sig")
