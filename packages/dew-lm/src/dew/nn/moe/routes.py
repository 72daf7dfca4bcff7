"""What a decoder tells its routers about the tokens: which to report, and which experts to replay.

Dimensions: B rows, S tokens, L layers of the decoder, K experts of a token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import struct

ROUTES = "routes"
"""The collection a router sows the `experts` [B, S, K] of every token into, when it is mutable."""


@struct.dataclass
class Routes:
    """A record of the experts that tokens went to, for routers to follow.

    A router sends a covered token to the recorded experts and weights them by its own scores of today, so
    that its kernel has the gradient of these weights; any other token goes where the router says.

    Attributes:
        experts: [B, S, L, K] integers for a decoder, of every layer (those of layers without experts are not
            read), or [B, S, K] for one layer. The K of a covered token are different experts: a token whose
            are not, or that names no expert of the mixture, gets weights that are not a number.
        covered: [B, S] booleans, the tokens to be replayed; None for all.
    """

    experts: jax.Array
    covered: jax.Array | None = None


@struct.dataclass
class RouterRows:
    """What routers are told about the tokens of rows.

    Attributes:
        counted: [B, S] booleans, the tokens that the routers report; None for all.
        routes: experts to replay, or None.
    """

    counted: jax.Array | None = None
    routes: Routes | None = None

    def at(self, layer: int | jax.Array) -> RouterRows:
        """The part of one layer of a decoder, by its index."""
        if self.routes is None:
            return self
        experts = jax.lax.dynamic_index_in_dim(self.routes.experts, layer, axis=2, keepdims=False)
        return replace(self, routes=replace(self.routes, experts=experts))


def follow(routes: Routes | None, own: jax.Array, num_experts: int) -> tuple[jax.Array, jax.Array | None]:
    """The experts [B, S, K] of every token, and where a record names no K different experts.

    Args:
        routes: of one layer, or None.
        own: [B, S, K], the router's own choice.
        num_experts: of the mixture.
    """
    if routes is None:
        return own, None
    recorded = routes.experts.astype(own.dtype)
    covered = jnp.ones(own.shape[:-1], bool) if routes.covered is None else routes.covered
    ordered = jnp.sort(recorded, axis=-1)
    wrong = (ordered[..., 0] < 0) | (ordered[..., -1] >= num_experts)
    wrong = wrong | jnp.any(ordered[..., 1:] == ordered[..., :-1], axis=-1)
    return jnp.where(covered[..., None], recorded, own), covered & wrong


def record_of(sown: Mapping[str, Any], layers: Sequence[str]) -> jax.Array:
    """The experts [B, S, L, K] that a decoder's routers reported; zeros for layers without one.

    Args:
        sown: what `apply` with `mutable=[ROUTES]` returned beside its result.
        layers: the layers' names, first to last, as the decoder's `bank.view.names`.

    Raises:
        ValueError: no layer reported experts.
    """
    reported = sown.get(ROUTES, {})
    found = [_experts_below(reported.get(name, {})) for name in layers]
    some = next((each for each in found if each is not None), None)
    if some is None:
        raise ValueError("no router reported experts; record a model with a mixture of experts")
    return jnp.stack([jnp.zeros_like(some) if each is None else each for each in found], axis=2)


def _experts_below(tree: Any) -> jax.Array | None:
    leaves = cast("list[jax.Array]", jax.tree.leaves(tree))
    return leaves[0] if leaves else None
