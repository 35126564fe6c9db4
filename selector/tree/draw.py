"""The tree as text, Mermaid, DOT and JSON; a networkx graph only where the graph itself is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from selector.tree.data import CONFLICTS, LEAVES, QUESTIONS, REMARKS, ROOT
from selector.tree.nodes import Amendment
from selector.tree.places import TITLES, Place
from selector.tree.policies import POLICIES, check_policy

if TYPE_CHECKING:
    import networkx


def edges(policy: str) -> Iterator[tuple[str, str, str, str]]:
    """(from, to, label, id of the amendment or empty): those of the documents first, then those of the policy."""
    for question in QUESTIONS.values():
        for answer in question.answers:
            yield question.id, answer.to, answer.text, ""
    for rule in POLICIES[check_policy(policy)]:
        if rule.to:
            yield rule.at, rule.to, rule.id, rule.id


def leaves(policy: str) -> list[str]:
    """Leaves that some edge of the policy reaches."""
    reached = {to for _, to, _, _ in edges(policy)}
    return [name for name in LEAVES if name in reached]


def text(policy: str) -> str:
    """The tree indented, with Chinese beside it; then amendments, guidance and conflicts, each with its place."""
    lines = [f"policy {policy}", ""]
    for number, (chinese, english) in TITLES.items():
        lines.append(f"document {number}: {chinese} ({english})")
    lines += ["", *_branch(ROOT, 0)]
    rules = POLICIES[check_policy(policy)]
    if rules:
        lines += ["", "amended, where the versions say so:", *(line for rule in rules for line in _rule(rule))]
    lines += ["", "beside the tree:"]
    lines += [f"  {r.about}: {r.text} [{r.place.source}: {r.place.chinese}]" for r in REMARKS]
    lines += ["", "where the documents disagree:"]
    for conflict in CONFLICTS:
        lines += [f"  {conflict.id}", f"    {conflict.first}", f"    {conflict.second}", f"    rule: {conflict.rule}"]
    return "\n".join(lines) + "\n"


def _branch(node: str, depth: int) -> Iterator[str]:
    pad = "    " * depth
    if node in LEAVES:
        yield f"{pad}=> {LEAVES[node].text} ({LEAVES[node].strategy})"
        return
    question = QUESTIONS[node]
    yield f"{pad}{question.text}  {question.chinese}"
    for answer in question.answers:
        yield f"{pad}  - {answer.text}:"
        yield from _branch(answer.to, depth + 1)


def _rule(rule: Amendment) -> Iterator[str]:
    gate = f" ({', '.join(map(str, rule.gates))})" if rule.gates else ""
    goes = f" -> {rule.to or rule.strategy}" if rule.to or rule.strategy else ""
    yield f"  {rule.id}{gate}: at {rule.at}{goes}"
    yield f"    {rule.today}"
    yield f"    instead of {rule.aged}"
    yield f"    source: {rule.source}"


def mermaid(policy: str) -> str:
    """A flowchart that GitHub and most notebooks draw."""
    lines = ["graph TD", "  start([start]) --> size"]
    lines += [f'  {q.id}{{"{q.text}"}}' for q in QUESTIONS.values()]
    lines += [f'  {name}["{LEAVES[name].text}: {LEAVES[name].strategy}"]' for name in leaves(policy)]
    for source, to, label, amended in edges(policy):
        arrow = "-.->" if amended else "-->"
        lines.append(f'  {source} {arrow}|"{label}"| {to}')
    return "\n".join(lines) + "\n"


def dot(policy: str) -> str:
    """Graphviz."""
    lines = ["digraph tree {", "  rankdir=TB;"]
    lines += [f'  {q.id} [shape=diamond, label="{q.text}"];' for q in QUESTIONS.values()]
    lines += [f'  {n} [shape=box, label="{LEAVES[n].text}\\n{LEAVES[n].strategy}"];' for n in leaves(policy)]
    for source, to, label, amended in edges(policy):
        style = ", style=dashed" if amended else ""
        lines.append(f'  {source} -> {to} [label="{label}"{style}];')
    return "\n".join([*lines, "}"]) + "\n"


def document(policy: str) -> dict[str, Any]:
    """``dist-advisor/tree/1``: an edge a row, nodes and what stands beside the tree."""
    rules = POLICIES[check_policy(policy)]
    return {
        "schema": "dist-advisor/tree/1",
        "policy": policy,
        "questions": [
            {"id": q.id, "question": q.text, "chinese": q.chinese, "place": _place(q.place)} for q in QUESTIONS.values()
        ],
        "leaves": [
            {"id": n, "text": LEAVES[n].text, "strategy": LEAVES[n].strategy, "place": _place(LEAVES[n].place)}
            for n in leaves(policy)
        ],
        "rows": [
            {"from": a, "to": b, "answer": label, "amendment": rule or None} for a, b, label, rule in edges(policy)
        ],
        "amendments": [
            {"id": r.id, "at": r.at, "to": r.to, "strategy": r.strategy, "today": r.today, "source": r.source,
             "gates": [str(g) for g in r.gates], "aged": _place(r.aged)}
            for r in rules
        ],
        "remarks": [{"id": r.id, "about": r.about, "text": r.text, "place": _place(r.place)} for r in REMARKS],
        "conflicts": [
            {"id": c.id, "first": _place(c.first), "second": _place(c.second), "rule": c.rule} for c in CONFLICTS
        ],
    }  # fmt: skip


def _place(place: Place) -> dict[str, Any]:
    return asdict(place)


def graph(policy: str = "current") -> networkx.MultiDiGraph:
    """The tree as a networkx graph: nodes with ``kind``, edges with ``answer`` and ``amendment``."""
    import networkx

    found = networkx.MultiDiGraph(policy=policy)
    for question in QUESTIONS.values():
        found.add_node(question.id, kind="question", text=question.text, place=question.place)
    for name in leaves(policy):
        found.add_node(name, kind="leaf", text=LEAVES[name].text, strategy=LEAVES[name].strategy)
    for remark in REMARKS:
        if remark.about in found:
            found.add_node(remark.id, kind="remark", text=remark.text, place=remark.place)
            found.add_edge(remark.about, remark.id, answer="", amendment="")
    for source, to, label, rule in edges(policy):
        found.add_edge(source, to, answer=label, amendment=rule)
    return found
