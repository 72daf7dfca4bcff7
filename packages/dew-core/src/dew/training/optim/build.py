"""An Optax transformation from an `OptimConfig`.

    clip -> direction -> decay -> [trust ratio] -> group factor -> -rate -> [QK-Clip]

A direction is what an update rule makes of the gradient before any rate: each optimizer is one, and
everything else is shared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import optax

from dew.training.optim.groups import check_patterns, decay_weights, multiply_rates
from dew.training.optim.matrices import AxisNames
from dew.training.optim.moments import bf16_moments
from dew.training.optim.muon import NO_NAMES, muon_directions
from dew.training.optim.qk_clip import qk_clip

if TYPE_CHECKING:
    from dew.config.optim import OptimConfig

DECAY = {"adamw": 1e-4}
"""The weight decay of an optimizer when the configuration leaves it unset; 0 for those not named."""


def lamb_direction(
    b1: float = 0.9, b2: float = 0.999, eps: float = 1e-6, eps_root: float = 0.0
) -> optax.GradientTransformation:
    """Adam's direction with LAMB's larger epsilon; the trust ratio follows the decay."""
    return optax.scale_by_adam(b1, b2, eps, eps_root)


DIRECTIONS: Mapping[str, Callable[..., optax.GradientTransformation]] = {
    "adam": optax.scale_by_adam,
    "adamw": optax.scale_by_adam,
    "lamb": lamb_direction,
    "muon": muon_directions,
    "muonclip": muon_directions,
}
"""What each optimizer makes of a gradient, from its `optimizer_opts`."""

READS_AXES = ("muon", "muonclip")
"""The optimizers whose direction depends on what a parameter's axes are."""

TAU = 100.0
"""The largest attention logit that muonclip lets stand (arXiv 2507.20534, section 2.1)."""


def build_schedule(config: OptimConfig, *, total_updates: int) -> optax.Schedule:
    """The learning rate by completed updates.

    Raises:
        ValueError: a schedule that does not fit into `total_updates`.
    """
    if config.schedule is None:
        return optax.constant_schedule(config.learning_rate)
    return config.schedule.build(peak=config.learning_rate, total_updates=total_updates)


def build_optimizer(
    config: OptimConfig, *, total_updates: int, axes: AxisNames = NO_NAMES
) -> optax.GradientTransformationExtraArgs:
    """The transformation `config` describes.

    Moments and arithmetic are float32 or wider whatever the parameters are stored in.

    Args:
        config: optimizer, rate, groups and clipping.
        total_updates: length of the run in optimizer updates.
        axes: the parameters' axis names by path, from `dew.training.optim.matrices.axis_names`; muon goes by
            ranks for a parameter without them.

    Raises:
        ValueError: an optimizer this version does not have, a schedule that does not fit, or, from `init`, a
            group whose pattern matches no parameter.
    """
    groups = config.param_groups
    default = DECAY.get(config.optimizer, 0.0) if config.weight_decay is None else config.weight_decay
    parts: list[optax.GradientTransformation] = []
    if config.clip_grads:
        parts.append(optax.clip_by_global_norm(config.clip_grads))
    parts.append(_direction(config, axes))
    if default or any(group.weight_decay for group in groups):
        parts.append(decay_weights(groups, default))
    if config.optimizer == "lamb":
        parts.append(optax.scale_by_trust_ratio())
    if groups:
        parts.append(multiply_rates(groups))
    parts.append(optax.scale_by_learning_rate(build_schedule(config, total_updates=total_updates)))
    if config.optimizer == "muonclip":
        tau: Any = config.optimizer_opts.get("tau", TAU)
        parts.append(qk_clip(tau))
    inner = widened(optax.chain(*parts))

    def init(params: Any) -> Any:
        check_patterns(groups, params)
        return inner.init(params)

    return optax.GradientTransformationExtraArgs(init, inner.update)


def _direction(config: OptimConfig, axes: AxisNames) -> optax.GradientTransformation:
    if config.optimizer not in DIRECTIONS:
        raise ValueError(
            f"optim.optimizer={config.optimizer!r} is not supported in this version; "
            f"use {', '.join(DIRECTIONS)}"
        )
    narrow = config.state_dtype == "bfloat16"
    direction: Callable[..., optax.GradientTransformation] = (
        bf16_moments if narrow else DIRECTIONS[config.optimizer]
    )
    named = {"axes": axes} if config.optimizer in READS_AXES else {}
    options = {name: value for name, value in config.optimizer_opts.items() if name != "tau"}
    return direction(**options, **named)


def widened(inner: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """`inner` fed with gradients and parameters of at least float32."""

    def wide(tree: Any) -> Any:
        def leaf(x: jax.Array) -> jax.Array:
            return x.astype(jnp.promote_types(x.dtype, jnp.float32))

        return jax.tree.map(leaf, tree)

    reading = optax.with_extra_args_support(inner)

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        return reading.update(wide(updates), state, None if params is None else wide(params), **extra)

    return optax.GradientTransformationExtraArgs(lambda params: inner.init(wide(params)), update)
