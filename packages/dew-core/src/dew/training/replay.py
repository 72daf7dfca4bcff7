"""Windows of composite statistics: terms that are no one ratio are reduced once, at the window's full sum.

For statistics `s = sum_k s_k` and a loss `r(s)`, the window's gradient is `sum_k J_k^T (dr/ds)(s)`. The
cotangent is known only when the last microbatch is in, so the microbatches are retained (rows, attempt, clock
and the mutable collections each one read) and pulled back one after another at the commit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dew.objectives.base import Aux, Batch, Objective, Step, merge
from dew.training.microbatch import (
    Attempt,
    added,
    attempt_step,
    joined,
    loss_factor,
    observe,
    pack,
    split,
    unpack,
    wide_scalar,
)
from dew.training.observations import empty_observations, head_maxima, observed
from dew.training.state import Accumulation, TrainState
from dew.training.widths import all_finite, like, widened


class ReplayWork(NamedTuple):
    """One microbatch's statistics and reports, and its rows."""

    stats: Any
    aux: Aux[Any]
    batch: Batch


class ReplayWindow:
    """Retains the microbatches of a window and replays them at its end."""

    def __init__(self, objective: Objective[Any, Any], size: int, stats: Any, aux: Aux[Any]) -> None:
        self._objective = objective
        self._size = size
        self._stats = stats
        self._aux = aux

    def empty(self, state: TrainState, batch: Batch) -> Accumulation:
        _, rest = split(state.params)
        records = {"batch": pack(batch), "rest": pack(rest), "step": state.step, "microstep": state.microstep}

        def zeros(tree: Any) -> Any:
            return widened(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), tree))

        return {
            "stats": pack(zeros(self._stats)),
            **empty_observations(self._aux),
            "records": jax.tree.map(lambda leaf: jnp.zeros((self._size, *leaf.shape), leaf.dtype), records),
        }

    def work(self, state: TrainState, batch: Batch) -> ReplayWork:
        params, rest = split(state.params)
        return ReplayWork(*observe(self._objective, params, rest, batch, attempt_step(state)), batch)

    def attempt(self, state: TrainState, work: ReplayWork) -> Attempt:
        held = state.accumulation
        assert held is not None, "a window above one microbatch starts from its empty accumulation"
        params, rest = split(state.params)
        stats, aux, batch = work
        record = {"batch": pack(batch), "rest": pack(rest), "step": state.step, "microstep": state.microstep}
        slot = state.microstep % self._size
        summed: Accumulation = {
            "stats": added(held["stats"], pack(stats)),
            **observed(held, aux),
            "records": jax.tree.map(lambda kept, leaf: kept.at[slot].set(leaf), held["records"], record),
        }
        total = unpack(summed["stats"], stats)
        reduced, active = self._objective.reduce_loss(total)
        value = wide_scalar(reduced)
        return Attempt(
            value=value,
            active=jnp.asarray(active),
            finite=all_finite(stats) & jnp.isfinite(value),
            finite_loss=jnp.isfinite(value),
            aux=aux,
            gradient=lambda: self._replay(state, params, rest, batch, total, summed["records"]),
            effects=unpack(summed["effects"], aux.effects),
            logits=unpack(summed["logits"], head_maxima(aux.qk_stats)),
            accumulation=summed,
        )

    def _replay(
        self, state: TrainState, params: Any, rest: Any, batch: Batch, total: Any, records: Any
    ) -> Any:
        factor = loss_factor(state.scale)

        def reduced(stats: Any) -> jax.Array:
            return wide_scalar(self._objective.reduce_loss(stats)[0]) * factor

        _, pull_total = jax.vjp(reduced, total)
        (cotangent,) = pull_total(jnp.ones_like(reduced(total)))

        def add_one(gradient: Any, record: Any) -> tuple[Any, None]:
            key = jax.random.fold_in(state.key, record["step"])
            read = unpack(record["rest"], rest)
            average = None if state.ema is None else merge(joined(params, read), state.ema)
            step = Step(step=record["microstep"], key=key, ema=average)
            rows = unpack(record["batch"], batch)

            def stats_of(params: Any) -> Any:
                return observe(self._objective, params, read, rows, step)[0]

            stats, pull = jax.vjp(stats_of, params)
            (contribution,) = pull(_cotangent_of(cotangent, stats))
            return added(gradient, contribution), None

        zeros = jax.tree.map(jnp.zeros_like, widened(params))
        gradient, _ = jax.lax.scan(add_one, zeros, records)
        return like(jax.tree.map(lambda leaf: leaf / factor, gradient), params)


def _cotangent_of(cotangent: Any, stats: Any) -> Any:
    """The cotangent in the dtypes of one microbatch's statistics.

    Integer statistics have the dtype without values.
    """

    def fit(pulled: Any, leaf: Any) -> Any:
        return pulled if pulled.dtype == jax.dtypes.float0 else pulled.astype(leaf.dtype)

    return jax.tree.map(fit, cotangent, stats)
