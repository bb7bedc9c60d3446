"""Bounds on a schema that is enforced, checked before llguidance compiles it.

llguidance recurses for each property of an object, and from reference to reference: when the stack is full, the process
ends. Patterns of property names are compared with each other, in minutes if they are hundreds. Patterns that hold for
the same text are combined, which takes twice as long with each further one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from .errors import InvalidRequest

MAX_PROPERTIES: Final = 5_000  # as at OpenAI
MAX_OPTIONAL: Final = 256
"""Maximum optional properties of an object. Each may be the next one, so the mask of a token has to visit all."""
MAX_PATTERNS: Final = 64
MAX_COMBINED: Final = 8
"""Maximum patterns that may hold for the same text."""
MAX_LEVELS: Final = 1_500
"""Maximum levels of nesting with references written out, of which twice as many fill a stack of 8 MiB."""

_OWN: Final = frozenset(
    ("pattern", "format", "properties", "patternProperties", "additionalProperties", "items", "prefixItems")
)


def check_schema(schema: Mapping[str, Any], param: str) -> None:
    """Raise InvalidRequest if a schema is beyond the bounds."""
    size = _measured(schema)
    if size.properties > MAX_PROPERTIES:
        problem = f"has {size.properties:,} properties, and at most {MAX_PROPERTIES:,} can be enforced"
    elif size.optional > MAX_OPTIONAL:
        problem = (
            f"has an object with {size.optional:,} optional properties, and at most {MAX_OPTIONAL} can be enforced:"
            " make the others required, with null as a value"
        )
    elif size.patterns > MAX_PATTERNS:
        problem = f"has {size.patterns:,} patternProperties, and at most {MAX_PATTERNS} can be enforced"
    elif size.combined > MAX_COMBINED:
        problem = (
            f"may combine {size.combined:,} patterns for one text, and at most {MAX_COMBINED} can be enforced:"
            " use fewer patterns, or fewer parts of allOf"
        )
    elif size.levels > MAX_LEVELS:
        problem = (
            f"has {len(size.references):,} references and {size.depth} levels of nesting: use fewer, so that their"
            f" product is at most {MAX_LEVELS:,}"
        )
    else:
        return
    raise InvalidRequest(f"The schema {problem}", param=param)


@dataclass(slots=True)
class _Size:
    """The size of a schema.

    optional: the optional properties of the object that has the most of them. patterns: `patternProperties`.
    texts: different patterns and formats of texts. joints: places between schemas that hold for the same value.
    """

    properties: int = 0
    optional: int = 0
    patterns: int = 0
    texts: set[str] = field(default_factory=set)
    joints: int = 0
    depth: int = 0
    references: set[str] = field(default_factory=set)

    @property
    def levels(self) -> int:
        """The most levels that there may be with references written out: each of them may lead to the next one."""
        return self.depth * (1 + len(self.references))

    @property
    def combined(self) -> int:
        """The most patterns that may hold for the same text, wherever references lead."""
        return min(len(self.texts), 1 + self.joints)

    def add(self, part: Mapping[str, Any]) -> None:
        properties, required, patterns = (part.get(name) for name in ("properties", "required", "patternProperties"))
        names = properties.keys() if isinstance(properties, Mapping) else set[str]()
        needed = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set[str]()
        self.properties += len(names | needed)
        self.optional = max(self.optional, len(names - needed))
        self.patterns += len(patterns) if isinstance(patterns, Mapping) else 0
        self.texts.update(text for name in ("pattern", "format") if isinstance(text := part.get(name), str))
        self.joints += max(0, _conjuncts(part) - 1)
        if isinstance(part.get("$ref"), str):
            self.references.add(part["$ref"])


def _conjuncts(part: Mapping[str, Any]) -> int:
    """Return the number of schemas within this one that hold for the same value."""
    parts = part.get("allOf")
    count = len(parts) if isinstance(parts, list) else 0
    return count + sum(name in part for name in ("$ref", "anyOf", "oneOf")) + (not _OWN.isdisjoint(part))


def _measured(schema: Mapping[str, Any]) -> _Size:
    size, unread = _Size(), list[tuple[Any, int]]([(schema, 1)])
    while unread:
        part, depth = unread.pop()
        if isinstance(part, Mapping):
            size.add(part)
            inner: Any = part.values()
        elif isinstance(part, list):
            inner = part
        else:
            continue
        size.depth = max(size.depth, depth)
        unread += ((each, depth + 1) for each in inner)
    return size
