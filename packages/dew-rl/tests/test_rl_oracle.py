"""The golden file against TRL itself."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[3]
SPEC = importlib.util.spec_from_file_location("golden_rl", ROOT / "tools/golden_rl.py")
assert SPEC is not None and SPEC.loader is not None
golden = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(golden)


@pytest.mark.oracle
def test_golden_values_are_what_trl_computes_today(trl):
    live = json.loads(json.dumps(golden.compute()))
    assert live["library"] == trl["library"]
    for part in ("policy_losses", "preference_losses", "advantages", "kept_rows"):
        assert live[part].keys() == trl[part].keys()
        for case, expected in trl[part].items():
            same(live[part][case], expected)


def same(found, expected):
    if isinstance(expected, dict):
        for name, value in expected.items():
            same(found[name], value)
    else:
        np.testing.assert_allclose(found, expected, atol=1e-12)
