"""QK-Clip: rescale the query and key kernels of heads whose attention logits have grown too large.

Kimi K2 (arXiv 2507.20534), algorithm 1, lines 8 to 17. With `S_h` the largest `scale * q k^T` of head h among
the pairs that attention allows, over everything the update was made from, and `gamma_h = min(1, tau / S_h)`:

- a head with a key head of its own multiplies its query and its key kernel by `sqrt(gamma_h)` each;
- where several query heads share a key head, each multiplies its query kernel by `gamma_h` and the key kernel
  stays, as the shared rotary keys of the paper do: no head then changes another's logits;
- latent attention does the first with the part of a head that does not turn, and the second with the part
  that does, whose key all heads share.

Either way the logits of head h are multiplied by `gamma_h`. It acts on the parameters as the update leaves
them, once a commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Array, Float

from dew.training.observations import MAXIMA, STILL

QUERY, KEY = "q_proj", "k_proj"
"""The modules below an attention layer whose parameters make queries and keys, heads along the last axis."""

LATENT_QUERY, LATENT_KEY = "q_b_proj", "kv_b_proj"
"""The same of latent attention: queries (or `q_proj`), and keys with each head's value behind its key."""

type Path = tuple[str, ...]


def qk_clip(tau: float) -> optax.GradientTransformationExtraArgs:
    """Add QK-Clip to finished updates.

    `update` takes `qk_stats`, the largest logit of every head by the path of its attention layer, nested like
    `Aux.qk_stats` with [heads] for each, and `qk_nope` where it has one; without it the updates pass as they
    are.

    Args:
        tau: the largest logit a head may have.

    Raises:
        ValueError: from `init`, where no attention layer has both kernels among the parameters; from
            `update`, where one that reports its logits has not.
    """

    def init(params: Any) -> optax.EmptyState:
        paths = set(_flat(params))
        if not any(map(partial(_makes_logits, paths), paths)):
            raise ValueError(
                f"optim.optimizer='muonclip' rescales whole {QUERY} and {KEY} kernels, or {LATENT_QUERY} and "
                f"{LATENT_KEY} ones, and the trained "
                "parameters hold none (with lora they are factors, and trainable may leave them out); "
                "use 'muon'"
            )
        return optax.EmptyState()

    def update(
        updates: Any, state: Any, params: Any = None, *, qk_stats: Any = None, **others: Any
    ) -> tuple[Any, Any]:
        if qk_stats is None:
            return updates, state
        flat, held = _flat(updates), _flat(params)
        reported = _flat(qk_stats)
        for path in [path for path in reported if path[-1] == MAXIMA]:
            layer, still = path[:-1], reported.get((*path[:-1], STILL))
            for leaf, factors in leaf_factors(held, layer, reported[path], tau, still).items():
                flat[leaf] = _clipped(flat[leaf], held[leaf], factors)
        return unflatten_dict(flat), state

    return optax.GradientTransformationExtraArgs(init, update)


def leaf_factors(
    params: Mapping[Path, Any],
    layer: Path,
    maxima: Float[Array, " H"],
    tau: float,
    still: jax.Array | int | None = None,
) -> dict[Path, jax.Array]:
    """What each column of an attention layer's query and key parameters is multiplied by.

    Args:
        params: the leaves by path.
        layer: path of the attention layer.
        maxima: [H] the largest logit of every query head.
        tau: the largest logit a head may have.
        still: of latent attention, the width of a head that does not turn.

    Raises:
        ValueError: a layer without both kernels, or with heads that do not divide them.
    """
    gamma = tau / jnp.maximum(maxima, tau)
    heads = maxima.shape[0]
    if still is not None:
        return _latent_factors(params, layer, gamma, still)
    query, key = _leaves(params, (*layer, QUERY)), _leaves(params, (*layer, KEY))
    columns, key_columns = _columns(query), _columns(key)
    width = columns // heads
    if not width or columns % heads or not key_columns or key_columns % width:
        raise _unfit(layer, heads, {QUERY: columns, KEY: key_columns})
    if key_columns == columns:
        each = jnp.repeat(jnp.sqrt(gamma), width)
        return {leaf: each for leaf in (*query, *key)}
    each = jnp.repeat(gamma, width)
    return {leaf: each for leaf in query}


def _latent_factors(
    params: Mapping[Path, Any], layer: Path, gamma: Float[Array, " H"], still: jax.Array | int
) -> dict[Path, jax.Array]:
    """`sqrt(gamma)` for the still parts of queries and keys, `gamma` for turning queries, 1 for values."""
    name = LATENT_QUERY if (*layer, LATENT_QUERY, "kernel") in params else QUERY
    query, key = _leaves(params, (*layer, name)), _leaves(params, (*layer, LATENT_KEY))
    columns, key_columns = _columns(query), _columns(key)
    heads = gamma.shape[0]
    if not columns or columns % heads or not key_columns or key_columns % heads:
        raise _unfit(layer, heads, {name: columns, LATENT_KEY: key_columns})

    def each(width: int, behind: jax.Array) -> jax.Array:
        """Of the columns of all heads, the root in front of `still` and `behind` after it."""
        before = jnp.arange(width) < still
        return jnp.where(before, jnp.sqrt(gamma)[:, None], behind[:, None]).reshape(-1)

    of_queries = each(columns // heads, gamma)
    of_keys = each(key_columns // heads, jnp.ones_like(gamma))
    return dict.fromkeys(query, of_queries) | dict.fromkeys(key, of_keys)


def _makes_logits(paths: set[Path], path: Path) -> bool:
    """Whether a query kernel stands at `path`, and its keys' kernel beside it."""
    if path[-1:] != ("kernel",) or len(path) < 2:
        return False
    keys = {QUERY: (KEY, LATENT_KEY), LATENT_QUERY: (LATENT_KEY,)}.get(path[-2], ())
    return any((*path[:-2], key, "kernel") in paths for key in keys)


def _unfit(layer: Path, heads: int, columns: Mapping[str, int]) -> ValueError:
    return ValueError(
        f"qk_stats reports {heads} heads of {'/'.join(layer)}, whose {' and '.join(columns)} kernels have "
        f"{' and '.join(map(str, columns.values()))} columns among the trained parameters; QK-Clip needs "
        "both whole, so train them, or use optim.optimizer='muon'"
    )


def _leaves(params: Mapping[Path, Any], module: Path) -> dict[Path, Any]:
    return {path: leaf for path, leaf in params.items() if path[:-1] == module}


def _columns(leaves: Mapping[Path, Any]) -> int:
    return next((leaf.shape[-1] for path, leaf in leaves.items() if path[-1] == "kernel"), 0)


def _clipped(update: jax.Array, held: jax.Array, factors: jax.Array) -> jax.Array:
    scaled = factors * (held + update) - held
    return jnp.where(factors < 1, scaled, update)


def _flat(tree: Any) -> dict[Path, Any]:
    """The leaves by path below `params`, whether the tree is that collection or holds it."""
    return cast("dict[Path, Any]", flatten_dict(cast("dict[str, Any]", tree)))
