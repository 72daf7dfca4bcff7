"""What keeps a mixture's experts in use: balance losses, the router's z-loss, and biases moved once a commit.

Dimensions: L routers, B rows, E experts, K of them a token, T counted positions: those that hold a token, and
no padding. With f_e the share of the choices that fell on expert e and P_e the mean share of its scores, a
balance term is `E sum_e f_e P_e`, formed over a row (arXiv 2405.04434, equation 23) or over a step (arXiv
2101.03961, equation 4), and the z-loss is the mean of `log^2 sum_e exp(z_e)` (arXiv 2202.08906, equation 5).
Every term is summed over the routers and has its own mass, so that no token count rescales it. Uniform
routing makes each balance term 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
from flax import struct
from flax.traverse_util import flatten_dict, unflatten_dict

from dew.nn.moe.router import ROUTING, STATE, RoutingLoad
from dew.objectives.base import Mean, Variables, mean_loss

if TYPE_CHECKING:
    from dew.objectives.lm.decoder import Decoder

type Loads = Mapping[tuple[str, ...], RoutingLoad]
"""The load of every router under the path of its module."""


@struct.dataclass
class StepBalance:
    """Sums over the positions of a step, for a balance loss that is formed over all of them.

    Attributes:
        counts: [L, E] int32, tokens sent to each expert.
        scores: [L, E] the sums of the scores' shares.
        positions: [L], counted positions.
    """

    counts: jax.Array
    scores: jax.Array
    positions: jax.Array


@struct.dataclass
class LMStatistics:
    """Additive statistics of a loss with router terms.

    Attributes:
        tokens: of the cross entropy, over the counted targets.
        balance: over the rows with a counted position, totals and masses [L], or sums over the step; None
            without a balance loss.
        router_z: over counted positions, totals and masses [L]; None without a router z-loss.
    """

    tokens: Mean
    balance: Mean | StepBalance | None = None
    router_z: Mean | None = None


@dataclass(frozen=True, kw_only=True)
class RouterTerms:
    """Which terms a run adds; `LMObjective` documents the fields."""

    balance_rate: float | None = None
    aux_loss_alpha: float | None = None
    seq_aux: bool = True
    router_z_loss: float = 0.0

    @property
    def in_loss(self) -> bool:
        """Whether the loss has a router term."""
        return bool(self.aux_loss_alpha) or self.router_z_loss > 0

    @property
    def needed(self) -> bool:
        """Whether anything reads the routers' loads."""
        return self.in_loss or self.balance_rate is not None

    def check(self, model: Decoder) -> None:
        """Refuse a negative coefficient, and terms that the model has no routers or biases for.

        Raises:
            ValueError: naming the argument.
        """
        if not self.seq_aux and self.aux_loss_alpha is None:
            raise ValueError(
                "seq_aux=False forms the balance loss over the step, and aux_loss_alpha is unset; set it"
            )
        given = {
            "balance_rate": self.balance_rate,
            "aux_loss_alpha": self.aux_loss_alpha,
            "router_z_loss": self.router_z_loss or None,
        }
        mixture = getattr(model, "mixture", None)
        for name, value in given.items():
            if value is None:
                continue
            if value < 0:
                raise ValueError(f"{name}={value} must be 0 or more")
            if mixture is None:
                raise ValueError(f"{name}={value} needs a model with a mixture of experts; set its mixture")
        if self.balance_rate is not None and mixture is not None and not mixture.bias:
            raise ValueError(
                f"balance_rate={self.balance_rate} moves the routers' biases, and the mixture has none; "
                "set its bias=True"
            )

    def statistics(self, tokens: Mean, loads: Loads, top_k: int) -> Mean | LMStatistics:
        """The loss's statistics: `tokens` alone where no term is added.

        Args:
            tokens: of the cross entropy.
            loads: of one batch.
            top_k: K.
        """
        if not self.in_loss:
            return tokens
        every = [loads[path] for path in sorted(loads)]
        counts = jnp.stack([load.counts for load in every], axis=1)
        scores = jnp.stack([load.scores for load in every], axis=1)
        # Not all routers count the same positions: a prediction depth lacks a document's first.
        positions = jnp.stack([load.positions for load in every], axis=1)
        balance: Mean | StepBalance | None = None
        if self.aux_loss_alpha and self.seq_aux:
            held = jnp.sum(positions > 0, axis=0, dtype=jnp.float32)
            balance = Mean(jnp.sum(_balance(counts, scores, positions, top_k), axis=0), held)
        elif self.aux_loss_alpha:
            balance = StepBalance(counts.sum(0), scores.sum(0), positions.sum(0))
        router_z = None
        if self.router_z_loss > 0:
            squares = jnp.stack([jnp.sum(load.log_partition) for load in every])
            router_z = Mean(squares, positions.sum(0, dtype=jnp.float32))
        return LMStatistics(tokens, balance, router_z)

    def reduced(self, stats: LMStatistics, top_k: int) -> tuple[jax.Array, jax.Array]:
        """The loss and whether it has support."""
        value, active = mean_loss(stats.tokens)
        match stats.balance:
            case StepBalance(counts, scores, positions):
                balanced = jnp.sum(_balance(counts, scores, positions, top_k))
                value, active = (
                    value + cast("float", self.aux_loss_alpha) * balanced,
                    active | jnp.any(positions > 0),
                )
            case Mean():
                balanced, routed = _summed_means(stats.balance)
                value, active = value + cast("float", self.aux_loss_alpha) * balanced, active | routed
            case None:
                pass
        if stats.router_z is not None:
            squared, routed = _summed_means(stats.router_z)
            value, active = value + self.router_z_loss * squared, active | routed
        return value, active

    def moved(self, variables: Variables, counts: Variables) -> Variables:
        """The biases after a commit: each that has a load, a step of `balance_rate` towards the mean.

        Args:
            variables: the complete variables.
            counts: [E] int32 of each router that was computed, summed over the window, nested like its bias.
        """
        assert self.balance_rate is not None, "effects are emitted with a balance_rate alone"
        biases = _flat(variables[STATE])
        loads = _flat(counts)
        steps = {path: biases[path] + self.balance_rate * _below_mean(load) for path, load in loads.items()}
        return {STATE: unflatten_dict({**biases, **steps})}


def loads_of(sown: Variables) -> Loads:
    """The routers' loads in the collections that a forward pass returned."""
    return {path[:-1]: load for path, load in _flat(sown.get(ROUTING, {})).items()}


def counted(loads: Loads) -> Variables:
    """The tokens each expert got, nested like the routers' biases."""
    return unflatten_dict({(*path, "bias"): load.counts.sum(0) for path, load in loads.items()})


def _summed_means(terms: Mean) -> tuple[jax.Array, jax.Array]:
    """The sum over routers of their means, [L] totals and masses, and whether any has support."""
    means, active = mean_loss(terms)
    return jnp.sum(means), jnp.any(active)


def _balance(counts: jax.Array, scores: jax.Array, positions: jax.Array, top_k: int) -> jax.Array:
    """Return `E sum_e f_e P_e`, [...], of [..., E] counts and scores; 0 where there are no positions."""
    seen = jnp.maximum(positions, 1).astype(scores.dtype)[..., None]
    shares = counts.astype(scores.dtype) / (seen * top_k)
    return counts.shape[-1] * jnp.sum(shares * scores / seen, axis=-1)


def _below_mean(counts: jax.Array) -> jax.Array:
    """1 where an expert got less than the mean, -1 where more, 0 at it, compared in integers."""
    whole, rest = jnp.divmod(jnp.sum(counts), counts.shape[-1])
    return (counts < whole + (rest > 0)).astype(jnp.float32) - (counts > whole).astype(jnp.float32)


def _flat(tree: Any) -> dict[tuple[str, ...], Any]:
    return cast("dict[tuple[str, ...], Any]", flatten_dict(cast("dict[str, Any]", tree)))
