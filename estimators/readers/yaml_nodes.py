"""YAML text -> plain data and the line of each key, from the nodes of ``yaml.SafeLoader``.

The nodes are turned into data here, rather than by the loader's constructor, so that depth, the number of values and
the expansion of aliases have limits, duplicate keys are refused, and dates stay text.
"""

from __future__ import annotations

import math
from typing import Any

try:
    import yaml
except ImportError as error:  # pragma: no cover - the package is there wherever the tests run
    from estimators.errors import MissingDependency

    raise MissingDependency("reading YAML needs PyYAML: pip install pyyaml (JSON files need nothing)") from error

_TAG = "tag:yaml.org,2002:"
_AS_TEXT = {_TAG + "str", _TAG + "timestamp", _TAG + "value"}
_MAKERS = {
    _TAG + "null": "construct_yaml_null", _TAG + "bool": "construct_yaml_bool",
    _TAG + "int": "construct_yaml_int", _TAG + "float": "construct_yaml_float",
}  # fmt: skip


class YamlProblem(Exception):
    """What is wrong, and on which line (None: nowhere in particular)."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


def plain(text: str, max_depth: int, max_values: int) -> tuple[Any, dict[str, int]]:
    """Data and key lines of the only document in ``text``. Raises ``YamlProblem``."""
    try:
        loader = _Loader(text, max_depth, max_values)
        try:
            node = loader.get_single_node()
            return (None, {}) if node is None else _Reader(loader, max_depth, max_values).read(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else None
        raise YamlProblem(f"not valid YAML: {error.problem or error.context}", line) from None
    except yaml.YAMLError as error:  # a character that YAML does not allow
        raise YamlProblem(f"not valid YAML: {' '.join(str(error).split())[:120]}") from None
    except RecursionError:
        raise YamlProblem(f"nested deeper than {max_depth} levels") from None


class _Loader(yaml.SafeLoader):
    """Stops composing as soon as a limit is passed: a hostile text is not read to its end."""

    def __init__(self, text: str, max_depth: int, max_values: int) -> None:
        super().__init__(text)
        self.max_depth, self.max_values = max_depth, max_values
        self.depth = self.count = 0

    def fetch_flow_collection_start(self, token: Any) -> None:
        """The scanner looks a thousand characters ahead, in time that grows with the square of the open brackets."""
        if self.flow_level >= self.max_depth:
            raise YamlProblem(f"nested deeper than {self.max_depth} levels", self.line + 1)
        super().fetch_flow_collection_start(token)

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth, self.count = self.depth + 1, self.count + 1
        if self.depth > self.max_depth:
            raise YamlProblem(f"nested deeper than {self.max_depth} levels", self.line + 1)
        if self.count > 2 * self.max_values:  # keys are nodes as well
            raise YamlProblem(f"more than {self.max_values:,} values; that is not a configuration")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


class _Reader:
    def __init__(self, loader: _Loader, max_depth: int, max_values: int) -> None:
        self.loader, self.max_depth, self.max_values = loader, max_depth, max_values
        self.values = 0
        self.lines: dict[str, int] = {}

    def read(self, node: yaml.Node) -> tuple[Any, dict[str, int]]:
        return self.value(node, "", 1), self.lines

    def value(self, node: yaml.Node, where: str, depth: int) -> Any:
        self.values += 1
        line = node.start_mark.line + 1
        if self.values > self.max_values:
            raise YamlProblem(f"more than {self.max_values:,} values once its aliases are expanded", line)
        if depth > self.max_depth:
            raise YamlProblem(f"nested deeper than {self.max_depth} levels", line)
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self.mapping(node, where, depth)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return [self.value(item, f"{where}{i}.", depth + 1) for i, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node, line)
        raise YamlProblem(f"the tag {node.tag.replace(_TAG, '!!')[:60]} is not plain data", line)

    def mapping(self, node: yaml.MappingNode, where: str, depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise YamlProblem("a key is a mapping or a list; keys are text", line)
            if key_node.tag == _TAG + "merge":
                raise YamlProblem("merge keys (<<) are not read; write the keys out", line)
            key = str(key_node.value)
            if key in made:
                shown = "".join(c if c.isprintable() else "?" for c in where + key)[:80]
                raise YamlProblem(f"{shown} is given twice; keep one", line)
            self.lines[where + key] = line
            made[key] = self.value(value_node, f"{where}{key}.", depth + 1)
        return made

    def scalar(self, node: yaml.ScalarNode, line: int) -> Any:
        if node.tag in _AS_TEXT:
            return str(node.value)
        maker = _MAKERS.get(node.tag)
        if maker is None:
            raise YamlProblem(f"the tag {node.tag.replace(_TAG, '!!')[:60]} is not plain data", line)
        try:
            made = getattr(self.loader, maker)(node)
        except (ValueError, KeyError, IndexError, OverflowError):
            raise YamlProblem(f"{node.value[:40]!r} is not {node.tag.replace(_TAG, 'a YAML ')}", line) from None
        if isinstance(made, float) and not math.isfinite(made):
            raise YamlProblem(f"{node.value[:40]} is not a finite number", line)
        return made
