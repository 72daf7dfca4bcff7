"""What the processes of a pool must have in common before they draw together.

They meet on the pool's board, so that a bad request of one process ends the call on all of them before any
device waits for another.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from dew.sampling.text.components import as_data
from dew.sampling.text.describing import described, without_addresses
from dew.sampling.text.preparing import widened
from dew.training import pool

if TYPE_CHECKING:
    from dew.sampling.text.preparing import Asked, Checked


def agreed(asked: Asked, check: Callable[[Asked], Checked]) -> Checked:
    """`check(asked)`, on all processes or on none.

    Raises:
        ValueError: a request that breaks a rule, or differs from that of another process.
        PoolFailure: another process's request breaks a rule.
    """
    checked, error = None, None
    facts, own = dict[str, object](), dict[str, object]()
    try:
        _refuse_global_rows(asked)
        checked = check(asked)
        facts, own = _facts(asked, checked), _rows(checked)
    except Exception as raised:
        error = raised
    said = meet(error, facts, own)
    assert checked is not None, "meet raises the error of a request that was not checked"
    _refuse_torn_share(said)
    longest = max(each["longest"] for each in said)
    return widened(checked, longest, int(asked.model.max_seq_len))


def meet(
    error: Exception | None, facts: Mapping[str, object], own: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """What all processes bring, in their order; every process calls it once for a request.

    Args:
        error: what is wrong with this process's request, or None.
        facts: what must be the same everywhere.
        own: what need not.

    Raises:
        PoolFailure: another process's request is wrong. A process whose own is raises its error.
        ValueError: the facts differ.
    """
    told = "" if error is None else f"{type(error).__name__}: {error}"
    brought = json.dumps({"error": told, "facts": dict(facts), "own": dict(own)})
    said: list[dict[str, Any]] = [json.loads(text) for text in pool.exchange("generate", brought)]
    if error is not None:
        raise error
    for index, each in enumerate(said):
        if each["error"]:
            raise pool.PoolFailure(
                f"process {index} of {len(said)} refuses its part of the request: {each['error']}"
            )
    for index, each in enumerate(said):
        for name, value in said[0]["facts"].items():
            if each["facts"].get(name) != value:
                raise ValueError(
                    f"{name} differs between processes: process {index} has {each['facts'].get(name)} and "
                    f"process 0 has {value}; make the same request on every process, each with its own rows"
                )
    return [each["own"] for each in said]


def _refuse_global_rows(asked: Asked) -> None:
    for leaf in jax.tree.leaves(asked.inputs):
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            raise ValueError(
                "inputs hold arrays that lie across processes; give every process its own rows, as many on "
                "each and equally wide, in its own memory"
            )


def _facts(asked: Asked, checked: Checked) -> dict[str, object]:
    """What every process must say alike. A key for each row is a process's own."""
    own_keys = asked.key is not None and asked.key.ndim == 1
    key = asked.seed if asked.key is None else described(asked.key, "key")
    return {
        "the number of rows": checked.prompts.rows,
        "the prompts' padded width": checked.prompts.width,
        "max_new_tokens": int(asked.max_new_tokens),
        "n": int(asked.n),
        "key or seed": "one for each row" if own_keys else key,
        "sampling.pad_id": asked.sampling.pad_id,
        "logits": described(checked.chain, "logits"),
        "stopping": described(checked.criteria, "stopping"),
        "strategy": described(as_data((asked.strategy,)), "strategy"),
        "model": without_addresses(repr(asked.model)),
    }


def _rows(checked: Checked) -> dict[str, object]:
    """The longest prompt, and which rows these are, for processes that hold the same share."""
    keys = jax.random.key_data(checked.keys)
    held = (np.asarray(checked.prompts.packed), checked.prompts.lengths, np.asarray(keys))
    return {
        "longest": checked.prompts.longest,
        "share": checked.placement.share.index,
        "rows": described(held, "inputs"),
    }


def _refuse_torn_share(said: list[dict[str, Any]]) -> None:
    for index, each in enumerate(said):
        first = next(other for other in said if other["share"] == each["share"])
        if first["rows"] != each["rows"]:
            raise ValueError(
                f"process {index} and process {said.index(first)} hold the same rows of the mesh, and bring "
                "different ones; give both the same prompts and keys"
            )
