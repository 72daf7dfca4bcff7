"""Values that TRL computed, for the tests that compare with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def trl():
    """What `tools/golden_rl.py` wrote."""
    return json.loads((Path(__file__).parent / "golden/trl.json").read_text())
