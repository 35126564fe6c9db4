"""The documents' decision tree: data, two policies, and the way from a situation to a leaf."""

from __future__ import annotations

from selector.tree.nodes import TEAMS, Situation
from selector.tree.policies import POLICIES
from selector.tree.walk import Reading, Step, read, size_of

__all__ = ["POLICIES", "TEAMS", "Reading", "Situation", "Step", "read", "size_of"]
