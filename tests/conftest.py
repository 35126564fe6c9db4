"""Nothing that a developer's machine measured of itself (``validate --calibrate``) may enter a test."""

from __future__ import annotations

import os
import tempfile

os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="dist-advisor-tests-")
