"""YAML, read by libyaml where PyYAML has it: a tenth of the time, which each start and each command spends."""

from __future__ import annotations

from typing import Any, Final

import yaml

YAML_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MERGE: Final = "tag:yaml.org,2002:merge"


class RepeatedKey(yaml.YAMLError):
    """A mapping has a key twice, of which YAML's readers would ignore the first; the message has both lines."""


def parsed_yaml(text: str) -> Any:
    """Return the value of a YAML document.

    Raises:
        RepeatedKey: a mapping has a key twice.
        yaml.YAMLError: it is none.
    """
    return parsed_with_root(text)[1]


def parsed_with_root(text: str) -> tuple[yaml.Node | None, Any]:
    """Return the root of a YAML document, whose nodes have their lines, and its value, as `parsed_yaml`."""
    loader = YAML_LOADER(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None, None
        _refuse_repeated_keys(root)
        return root, loader.construct_document(root)
    finally:
        loader.dispose()


def _refuse_repeated_keys(root: yaml.Node) -> None:
    nodes, seen = [root], {id(root)}  # an alias refers to the node itself
    while nodes:
        node, inner = nodes.pop(), []
        if isinstance(node, yaml.MappingNode):
            _refuse_repeated_key(node)
            inner = [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            inner = node.value
        new = [each for each in inner if id(each) not in seen]
        seen.update(map(id, new))
        nodes += reversed(new)


def _refuse_repeated_key(node: yaml.MappingNode) -> None:
    lines: dict[tuple[str, str], int] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
            continue
        line = key.start_mark.line + 1
        if first := lines.get((key.tag, key.value)):
            both = f"lines {first} and {line} both have '{key.value}' in the same block"
            raise RepeatedKey(f"{both}, and the first would be ignored: make them one")
        lines[key.tag, key.value] = line
