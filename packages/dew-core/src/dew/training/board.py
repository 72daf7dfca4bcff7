"""The pool's board: short texts that the processes leave for one another at JAX's coordination service.

No device takes part, so a process reads the board also while its devices wait for those of another.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import jax

ROOT = "dew"
LONGEST_PAUSE_S = 0.05

_exchanges = itertools.count()


def client() -> Any:
    """The connection that `jax.distributed.initialize` opened; JAX has no public name for it.

    Raises:
        RuntimeError: there is none.
    """
    from jax._src import distributed

    held = distributed.global_state.client
    if held is None:
        raise RuntimeError("this process has left its pool; no other process can be reached")
    return held


def post(key: str, text: str) -> None:
    """Leave `text` under `key`, in the place of an earlier one."""
    client().key_value_set(f"{ROOT}/{key}", text, allow_overwrite=True)


def post_first(key: str, text: str) -> str:
    """Leave `text` under `key` unless another process was first; returns what then is there."""
    try:
        client().key_value_set(f"{ROOT}/{key}/first", text)
    except jax.errors.JaxRuntimeError as error:
        held = read(key).get("first")
        if held is None:  # not a matter of who was first: the board itself cannot be reached
            raise error
        return held
    return text


def read(folder: str) -> dict[str, str]:
    """Everything below `folder`, by the rest of its key."""
    start = f"{ROOT}/{folder}/"
    found = client().key_value_dir_get(start)
    return {key.removeprefix(start): text for key, text in found}


def exchange(text: str, *, meanwhile: Callable[[list[int]], None]) -> list[str]:
    """The texts of all processes, in their order; each calls it once, in the same order as other exchanges.

    Args:
        text: what this process has to say.
        meanwhile: called with the missing processes while they are waited for; it ends the wait by raising.
    """
    index, count, number = jax.process_index(), jax.process_count(), next(_exchanges)
    post(f"exchange/{number}/{index}", text)
    pause = 0.001
    while True:
        found = read(f"exchange/{number}")
        missing = [other for other in range(count) if str(other) not in found]
        if not missing:
            break
        meanwhile(missing)
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_S)
    if number >= 2:  # whoever is here has read the one before the last
        client().key_value_delete(f"{ROOT}/exchange/{number - 2}/{index}")
    return [found[str(other)] for other in range(count)]
