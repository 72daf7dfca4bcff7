"""Run every trial of a `ComponentContract` on all devices of this process, and print the outcomes as JSON.

python -m dew.testing.sharded tests/test_mine.py TestComponents
"""

from __future__ import annotations

import importlib.util
import json
import sys
import traceback
from typing import Any

from dew.testing.components import ComponentContract
from dew.testing.trials import check_sharded


def load(file: str, name: str) -> ComponentContract:
    """The contract class `name` of a test file, made anew."""
    spec = importlib.util.spec_from_file_location("dew_components_under_test", file)
    assert spec is not None and spec.loader is not None, f"{file} cannot be imported"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part)
    return found()


def outcomes(contract: ComponentContract) -> dict[str, str]:
    """Kind and name of each trial to its fault, or nothing."""
    examples = contract.examples()
    found: dict[str, str] = {}
    for part in contract.components():
        key = part.kind, part.name
        if key in examples:
            found["-".join(key)] = outcome(examples[key], key)
    return found


def outcome(example: Any, key: tuple[str, str]) -> str:
    """What went wrong with one trial, or nothing."""
    try:
        trial = example.trial(*key)
        if trial is not None:
            check_sharded(trial)
    except Exception:
        return traceback.format_exc(limit=-6)
    return ""


if __name__ == "__main__":
    print(json.dumps(outcomes(load(sys.argv[1], sys.argv[2]))))
