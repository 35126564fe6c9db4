"""Findings as SARIF 2.1.0, which code hosts show beside the lines."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from selector.checks.finding import Finding
from selector.checks.rules import BESIDE, RULES

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVEL = {"error": "error", "warning": "warning", "info": "note"}


def sarif(findings: Sequence[Finding], version: str) -> dict[str, Any]:
    """One run with the rules that fired and their results."""
    names = sorted({finding.rule for finding in findings})
    driver = {"name": "dist-advisor", "version": version, "rules": [_rule(name) for name in names]}
    results = [_result(finding, names.index(finding.rule)) for finding in findings]
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def _rule(name: str) -> dict[str, Any]:
    rule = RULES.get(name)
    text = rule.trigger if rule else BESIDE[name]
    made: dict[str, Any] = {"id": name, "shortDescription": {"text": text}}
    if rule:
        made |= {
            "help": {"text": f"{rule.fix} (source: {rule.source})"},
            "defaultConfiguration": {"level": _LEVEL[rule.severity]},
        }
    return made


def _result(finding: Finding, index: int) -> dict[str, Any]:
    where = f"{finding.where}: " if finding.where else ""
    location: dict[str, Any] = {"physicalLocation": {"artifactLocation": {"uri": _uri(finding.file)}}}
    if finding.line:
        location["physicalLocation"]["region"] = {"startLine": finding.line}
    if finding.where:
        location["logicalLocations"] = [{"fullyQualifiedName": finding.where}]
    text = f"{where}{finding.message}. {finding.fix}"
    return {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": _LEVEL[finding.severity],
        "message": {"text": text},
        "locations": [location] if finding.file else [],
    }


def _uri(file: str) -> str:
    """Relative where the file lies below the working folder, as SARIF wants it."""
    path = Path(os.path.relpath(file)) if file and os.path.isabs(file) else Path(file)
    return path.as_posix() if not path.as_posix().startswith("..") else Path(file).absolute().as_uri()
