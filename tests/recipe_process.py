"""Train a recipe in a process of its own, for `test_recipes.py`, and print what it came to as JSON.

    python tests/recipe_process.py '{"recipe": "lm", "fields": {"trainer.steps": 6}}'

`kill_after` ends the process by SIGKILL as soon as the checkpoint of that step is durable: later steps have
run by then, and nothing of theirs is saved.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from typing import Any

import jax
import numpy as np

from dew.registry import recipes
from dew.training.checkpoints import Checkpoints


def configured(recipe: str, fields: dict[str, Any]) -> Any:
    """The recipe's preset with `fields`, by their dotted paths in its record."""
    config_class = recipes.config(recipe)
    record = config_class.starting_point().to_dict()
    for path, value in fields.items():
        *above, last = path.split(".")
        place = record
        for name in above:
            place = place[name]
        if last not in place:
            raise KeyError(f"{path} is no field of recipe {recipe}")
        place[last] = value
    return config_class.from_dict(record)


def die_after(step: int) -> None:
    """Kill this process when a write of `step` has been waited for."""
    wait = Checkpoints.wait

    def then_die(self: Checkpoints) -> None:
        wait(self)
        if self.latest == step:
            os.kill(os.getpid(), signal.SIGKILL)

    Checkpoints.wait = then_die


def digests(state: Any) -> dict[str, str]:
    """The hash of every leaf's bytes, by path."""
    found: dict[str, str] = {}
    for path, leaf in jax.tree.leaves_with_path(state):
        if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        value = np.asarray(leaf)
        said = f"{value.dtype}{value.shape}".encode() + value.tobytes()
        found[jax.tree_util.keystr(path, simple=True, separator="/")] = hashlib.sha256(said).hexdigest()
    return found


def main() -> int:
    request = json.loads(sys.argv[1])
    config = configured(request["recipe"], request["fields"])
    if "kill_after" in request:
        die_after(request["kill_after"])
    state = recipes.get(request["recipe"])(config)
    clocks = {name: int(getattr(state, name)) for name in ("step", "microstep", "updates")}
    result = {"clocks": clocks, "devices": jax.device_count(), "leaves": digests(state)}
    print("RESULT " + json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
