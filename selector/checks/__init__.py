"""Findings on configuration files: 144 collected rules, each confirmed against the engines or said to be reported.

check_files(["ds_config.json"], model="llama-8b", cluster="8xA100")
"""

from __future__ import annotations

from selector.checks.finding import Finding
from selector.checks.registry import RULES, Rule
from selector.checks.run import check_files

__all__ = ["RULES", "Finding", "Rule", "check_files"]
