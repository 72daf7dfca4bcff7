"""Adam with its moments in bfloat16, rounded stochastically so that no small change is lost in the mean."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax


def stochastic_round(x: jax.Array, *, key: jax.Array) -> jax.Array:
    """Round float32 to bfloat16 so that the expected value is `x`.

    A value between two neighbours goes up with the fraction of the way it has come; one that bfloat16 can
    hold, and a value that is not finite, stays.

    Args:
        x: float32 of any shape.
        key: typed PRNG key.
    """
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    noise = jax.random.bits(key, x.shape, jnp.uint16).astype(jnp.uint32)
    kept = (bits + noise) & jnp.uint32(0xFFFF0000)
    rounded = jax.lax.bitcast_convert_type(kept, jnp.float32)
    return jnp.where(jnp.isfinite(x), rounded, x).astype(jnp.bfloat16)


def bf16_moments(
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    *,
    nesterov: bool = False,
    seed: int = 0,
) -> optax.GradientTransformation:
    """`optax.scale_by_adam` with both moments stored in bfloat16.

    The update of a step uses the float32 moments of that step; what is stored is rounded by
    `stochastic_round`. The draws of update n come from `fold_in(key(seed), n)`, then the moment and the
    leaf's place in the tree, so that a resumed run repeats them.

    Args:
        b1: decay of the first moment.
        b2: decay of the second moment.
        eps: added to the denominator.
        eps_root: added under the root.
        nesterov: look one step ahead.
        seed: of the rounding's key.
    """

    def init(params: Any) -> Any:
        zeros = jax.tree.map(lambda leaf: jnp.zeros_like(leaf, jnp.bfloat16), params)
        return optax.ScaleByAdamState(count=jnp.zeros([], jnp.int32), mu=zeros, nu=zeros)

    adam = optax.scale_by_adam(b1, b2, eps, eps_root, nesterov=nesterov)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        before = _moments(state)
        wide: Any = before._replace(mu=_float32(before.mu), nu=_float32(before.nu))
        stepped, moved = adam.update(_float32(updates), wide, params)
        after = _moments(moved)
        key = jax.random.fold_in(jax.random.key(seed), before.count)
        mu = _rounded(after.mu, jax.random.fold_in(key, 0))
        nu = _rounded(after.nu, jax.random.fold_in(key, 1))
        return stepped, after._replace(mu=mu, nu=nu)

    return optax.GradientTransformation(init, update)


def _moments(state: Any) -> optax.ScaleByAdamState:
    return state


def _float32(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), tree)


def _rounded(tree: Any, key: jax.Array) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    keys = [jax.random.fold_in(key, place) for place in range(len(leaves))]
    rounded = [stochastic_round(leaf, key=each) for leaf, each in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(structure, rounded)
