"""Which text tasks a server can run, and in which sizes."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dew.inference import TextGeneration
from dew.inference.server.rows import vacant
from dew.sampling.text import Sample, loop
from dew.sampling.text.checks import check_model, check_parts, is_count
from dew.sampling.text.components import Criteria, Transforms, as_data


def parts(task: TextGeneration) -> tuple[Transforms, Criteria]:
    """The transforms and the criteria that `task` is bound to."""
    policy = task.sampling
    transforms = policy.transforms() if task.logits is None else task.logits
    return Transforms(as_data(transforms)), Criteria(as_data((*policy.criteria(), *task.stopping)))


def check_task(task: object) -> None:
    """Refuse a task that a server cannot run.

    Raises:
        TypeError: no text task.
        ValueError: a setting that cannot be served, by name.
    """
    if not isinstance(task, TextGeneration):
        raise TypeError(
            f"a server runs a TextGeneration task, not {type(task).__name__}; call the task itself"
        )
    if task.n != 1:
        raise ValueError(
            f"n={task.n} of the task: a server draws one continuation of a request; bind n=1 with "
            "dataclasses.replace(task, n=1) and submit a prompt once for each, with a key of its own"
        )
    if type(task.strategy) not in (type(None), Sample):
        raise ValueError(f"strategy={task.strategy!r} of the task cannot be served; leave it out")
    check_model(task.model, task.sampling)
    transforms, criteria = parts(task)
    check_parts((*transforms.parts, *criteria.parts), int(task.model.vocab_size))
    devices = {device for leaf in jax.tree.leaves(task.variables) for device in jnp.asarray(leaf).devices()}
    if len(devices) > 1:
        raise ValueError(
            f"the task's weights lie on {len(devices)} devices, and a server runs on one; open the task "
            "without a mesh"
        )
    check_rowwise(task)


def check_sizes(slots: int, capacity: int, *, longest: int) -> None:
    """Refuse numbers of rows, or of slots in a row, that no server has.

    Args:
        slots: the rows.
        capacity: tokens of a row.
        longest: the model's `max_seq_len`.

    Raises:
        ValueError: naming the number.
    """
    if not is_count(slots):
        raise ValueError(f"slots={slots!r} must be a positive integer: the rows that draw at once")
    if not is_count(capacity) or not 2 <= capacity <= longest:
        raise ValueError(
            f"capacity={capacity!r} must be an integer that holds a prompt and a drawn token and at most the "
            f"model's max_seq_len={longest}; use 2 to {longest}"
        )


def check_rowwise(task: TextGeneration) -> None:
    """Refuse transforms and criteria that hold a value for each row of one particular batch.

    Raises:
        ValueError: naming what they raised.
    """
    transform, stopping = parts(task)
    for rows in (2, 3):
        carry = jax.eval_shape(lambda rows=rows: vacant(rows, 2, task.sampling.pad_id))
        logits = jax.ShapeDtypeStruct((rows, int(task.model.vocab_size)), jnp.float32)
        try:
            jax.eval_shape(loop.draw, carry, logits, transform, stopping)
        except (TypeError, ValueError) as error:
            raise ValueError(
                "logits and stopping of a served task apply to rows one by one, whatever their number, and "
                f"the task's do not: {error}"
            ) from error
