"""Edits of a configuration in its own text: what no edit names stays as it was written - layout, order, comments."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from estimators.values import dataclass
from selector.checks.finding import REMOVE, Edit

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


@dataclass(frozen=True, slots=True)
class Member:
    """A key and its value: where the key starts and ends, where the value does; ``inside`` where it is a mapping,
    ``below`` where it stands on the lines below the key."""

    key_at: int
    key_end: int
    at: int
    end: int
    inside: Node | None = None
    below: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    """A mapping. ``flow`` has braces and commas (all of JSON); else the lines and indentation of YAML's blocks."""

    at: int
    end: int
    members: Mapping[str, Member]
    flow: bool


Tree = Callable[[str], Node]


def edited(text: str, edits: Sequence[Edit], tree: Tree) -> str:
    """The text with the edits made, one after the other; of two edits of one key the first counts."""
    for edit in {e.path: e for e in reversed(edits)}.values():
        text = _edit(text, edit, tree(text), _json_value if tree is json_tree else _yaml_value)
    return text


def _edit(text: str, edit: Edit, root: Node, render: Callable[[Any], str]) -> str:
    node, above = root, None
    keys = edit.path.split(".")
    while len(keys) > 1 and (member := node.members.get(keys[0])) and member.inside is not None:
        node, above, keys = member.inside, member, keys[1:]
    member = node.members.get(keys[0])
    if edit.value is REMOVE:
        return text if member is None or len(keys) > 1 else _without(text, node, member, above)
    value = edit.value
    for key in reversed(keys[1:]):
        value = {key: value}
    if member is not None:
        return _with(text, node, member, value, render)
    return _added(text, node, keys[0], value, render)


def _with(text: str, node: Node, member: Member, value: Any, render: Callable[[Any], str]) -> str:
    if member.below:  # lines of a block give way to one value
        return f"{text[: member.key_end]}: {render(value)}{text[member.end :]}"
    space = " " if member.at == member.end and text[member.at - 1 : member.at] == ":" else ""
    return text[: member.at] + space + _laid_out(text, node, member.key_at, value, render) + text[member.end :]


def _laid_out(text: str, node: Node, key_at: int, value: Any, render: Callable[[Any], str]) -> str:
    """A mapping in JSON goes over lines where its neighbours do."""
    start = text.rfind("\n", 0, key_at) + 1
    indent = text[start:key_at]
    if not isinstance(value, dict) or not value or render is not _json_value or not node.flow or indent.strip():
        return render(value)
    inner = [m.inside for m in node.members.values() if m.inside is not None and m.inside.members]
    if inner and not any("\n" in text[n.at : n.end] for n in inner):
        return render(value)  # its neighbours stand on one line too
    unit = indent[: len(indent) // max(_depth(text[:key_at]), 1)] or "  "
    return json.dumps(value, indent=unit, ensure_ascii=False).replace("\n", _newline(text) + indent)


def _depth(text: str) -> int:
    """Braces and brackets that are open at the end of a text."""
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', "", text)
    return sum(bare.count(c) for c in "{[") - sum(bare.count(c) for c in "}]")


def _without(text: str, node: Node, member: Member, above: Member | None) -> str:
    order = sorted(node.members.values(), key=lambda m: m.key_at)
    place = order.index(member)
    if len(order) == 1:
        if node.flow:
            return text[: node.at] + "{}" + text[node.end :]
        return "{}\n" if above is None else f"{text[: above.key_end]}: {{}}{text[member.end :]}"
    if not node.flow:
        start, end = text.rfind("\n", 0, member.key_at) + 1, text.find("\n", member.end)
        return text[:start] + (text[end + 1 :] if end >= 0 else "")
    if place + 1 < len(order):
        return text[: member.key_at] + text[order[place + 1].key_at :]
    return text[: order[place - 1].end] + text[member.end :]


def _added(text: str, node: Node, key: str, value: Any, render: Callable[[Any], str]) -> str:
    """Behind the last key, laid out as the keys before it."""
    order = sorted(node.members.values(), key=lambda m: m.key_at)
    name = json.dumps(key, ensure_ascii=False) if render is _json_value else key
    if not order:
        return text[: node.at] + f"{{{name}: {render(value)}}}" + text[node.end :]
    last = order[-1]
    if node.flow:
        before = order[-2].end if len(order) > 1 else node.at
        gap = re.sub(r"^\s*,|^\{", "", text[before : last.key_at])
        colon = text[last.key_end : last.at]
        made = _laid_out(text, node, last.key_at, value, render)
        return f"{text[: last.end]},{gap or ' '}{name}{colon}{made}{text[last.end :]}"
    indent = last.key_at - (text.rfind("\n", 0, last.key_at) + 1)
    end = text.find("\n", last.end)
    head, tail = (text, "") if end < 0 else (text[:end], text[end + 1 :])
    newline = _newline(text)
    lines = newline.join(" " * indent + line for line in _block(key, value))
    return f"{head.rstrip(chr(13))}{newline}{lines}{newline}{tail}"


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


# ------------------------------------------------------------------------------------------------------- where keys are


def json_tree(text: str) -> Node:
    """The places of the keys of a JSON object, which ``json`` has accepted."""
    tokens = _TOKEN.finditer(text)
    return _json_value_at(next(tokens), tokens).inside or Node(0, 0, {}, True)


def _json_value_at(first: re.Match[str], tokens: Iterator[re.Match[str]]) -> Member:
    """A value as a member without a key."""
    at, token = first.start(), first
    if first[0] not in "{[":
        return Member(at, at, at, first.end())
    members: dict[str, Member] = {}
    for token in tokens:
        if token[0] in "}]":
            break
        if token[0] == ",":
            continue
        if first[0] == "[":
            _json_value_at(token, tokens)
            continue
        key = token
        next(tokens)  # the colon
        found = _json_value_at(next(tokens), tokens)
        members[json.loads(key[0])] = Member(key.start(), key.end(), found.at, found.end, found.inside)
    inside = Node(at, token.end(), members, True) if first[0] == "{" else None
    return Member(at, at, at, token.end(), inside)


def yaml_tree(text: str) -> Node:
    """The places of the keys of a YAML mapping."""
    import yaml

    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        raise yaml.YAMLError("not a mapping")
    return _yaml_node(root)


def _yaml_node(found: Any) -> Node:
    import yaml

    members: dict[str, Member] = {}
    for key, value in found.value:
        inside = _yaml_node(value) if isinstance(value, yaml.MappingNode) else None
        if isinstance(value, yaml.ScalarNode) and value.style in ("|", ">"):
            raise yaml.YAMLError("a block of text")
        below = isinstance(value, yaml.CollectionNode) and not value.flow_style
        at, end = key.start_mark.index, key.end_mark.index
        members[str(key.value)] = Member(at, end, value.start_mark.index, _end(value), inside, below)
    return Node(found.start_mark.index, _end(found), members, bool(found.flow_style))


def _end(node: Any) -> int:
    """Where a value ends; PyYAML lets a block end where the next key begins."""
    import yaml

    while isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    return int(node.end_mark.index)


# --------------------------------------------------------------------------------------------------------------- values


def _json_value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _yaml_value(value: Any) -> str:
    """On one line."""
    import yaml

    return str(yaml.safe_dump(value, default_flow_style=True, width=10**6)).strip().removesuffix("...").strip()


def _block(key: str, value: Any) -> list[str]:
    import yaml

    if isinstance(value, dict) and value:
        return str(yaml.safe_dump({key: value}, default_flow_style=False, sort_keys=False)).splitlines()
    return [f"{key}: {_yaml_value(value)}"]
