"""The commit.

The optimizer's update, the window's effects and the average, applied together or not at all.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dew.objectives.base import Objective
from dew.training.ema import advanced
from dew.training.microbatch import Attempt, Collections, joined, replaced, split
from dew.training.state import TrainState
from dew.training.widths import all_finite


class Moved(NamedTuple):
    """The parts of the state that a commit moves."""

    params: Any
    rest: Collections
    opt_state: Any
    ema: Any
    updates: jax.Array


def settle(
    objective: Objective[Any, Any],
    optimizer: optax.GradientTransformation,
    state: TrainState,
    attempt: Attempt,
    full: jax.Array | bool,
) -> tuple[Moved, jax.Array]:
    """Commit where the window is full, supported and finite; report whether the attempt is accepted.

    A rejected attempt leaves every part as it was. An accepted one that does not commit replaces the mutable
    collections alone.
    """
    params, rest = split(state.params)
    read = replaced(rest, attempt.aux.variables, where="Aux.variables")
    held = Moved(params, read, state.opt_state, state.ema, state.updates)
    closes = jnp.asarray(full) & attempt.finite & attempt.active

    def finish() -> tuple[Moved, jax.Array]:
        gradient = attempt.gradient()
        sound = all_finite(gradient)
        moved = jax.lax.cond(
            closes & sound,
            lambda: _committed(objective, optimizer, held, gradient, attempt),
            lambda: held,
        )
        return moved, sound

    if full is True:
        moved, sound = finish()
    else:
        moved, sound = jax.lax.cond(closes, finish, lambda: (held, jnp.asarray(True)))
    accepted = attempt.finite & (sound | ~closes)
    if read is not rest or attempt.effects is not None:
        kept = jax.tree.map(lambda new, old: jnp.where(accepted, new, old), moved.rest, rest)
        moved = moved._replace(rest=kept)
    return moved, accepted


def _committed(
    objective: Objective[Any, Any],
    optimizer: optax.GradientTransformation,
    held: Moved,
    gradient: Any,
    attempt: Attempt,
) -> Moved:
    reading = optax.with_extra_args_support(optimizer)
    observed = {} if attempt.logits is None else {"qk_stats": attempt.logits}
    changes, opt_state = reading.update(gradient, held.opt_state, held.params, **observed)
    params = optax.apply_updates(held.params, changes)
    rest = held.rest
    if attempt.effects is not None:
        replacements = objective.apply_effects(joined(params, rest), attempt.effects)
        rest = replaced(rest, replacements, where=f"{type(objective).__name__}.apply_effects")
    ema = held.ema
    if objective.ema is not None and ema is not None:
        ema = advanced(ema, joined(params, rest), objective.ema, held.updates)
    return Moved(params, rest, opt_state, ema, held.updates + 1)
