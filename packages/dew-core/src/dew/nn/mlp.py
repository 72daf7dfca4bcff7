"""Feed-forward blocks: gated (SwiGLU, GEGLU; arXiv 2002.05202), squared ReLU (arXiv 2109.08668) and GELU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype
from jaxtyping import Array, Float

from dew.nn.dense import Dense, fan_in_normal

type Activation = Literal["swiglu", "geglu", "geglu_erf", "relu2", "gelu", "gelu_erf"]
"""A feed-forward block, one of `GATES` or of `PLAIN`."""


def squared_relu(x: jax.Array) -> jax.Array:
    """Return `max(x, 0)^2`."""
    return jnp.square(jax.nn.relu(x))


GATES: Mapping[str, Callable[[jax.Array], jax.Array]] = {
    "swiglu": jax.nn.silu,
    "geglu": partial(jax.nn.gelu, approximate=True),
    "geglu_erf": partial(jax.nn.gelu, approximate=False),
}
"""Gated blocks and their gate's nonlinearity; `geglu` has the tanh form of GELU, as Gemma does."""
PLAIN: Mapping[str, Callable[[jax.Array], jax.Array]] = {
    "relu2": squared_relu,
    "gelu": partial(jax.nn.gelu, approximate=True),
    "gelu_erf": partial(jax.nn.gelu, approximate=False),
}
"""Blocks without a gate and their nonlinearity; `gelu` has the tanh form, as GPT-2 does."""

ACTIVATIONS = (*GATES, *PLAIN)


class FeedForward(nn.Module):
    """`down(gate(x W_g) * (x W_u))`, or `down(f(x W_u))` without a gate.

    Attributes:
        width: of the hidden layer.
        activation: which block.
        output_gain: scale of the output projection's initial values.
        dtype: computes.
        param_dtype: stores.
        precision: of every product.
        bias: whether the projections have one.
    """

    width: int
    activation: Activation = "swiglu"
    output_gain: float = 1.0
    dtype: Dtype = jnp.float32
    param_dtype: Dtype = jnp.float32
    precision: jax.lax.PrecisionLike = None
    bias: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        dense = partial(
            Dense, dtype=self.dtype, param_dtype=self.param_dtype, precision=self.precision, bias=self.bias
        )
        hidden = dense(self.width, ("embed", "mlp"), name="up_proj")(x)
        if self.activation in PLAIN:
            hidden = PLAIN[self.activation](hidden)
        else:
            gate = dense(self.width, ("embed", "mlp"), name="gate_proj")(x)
            hidden = GATES[self.activation](gate) * hidden
        output = dense(
            x.shape[-1], ("mlp", "embed"), kernel_init=fan_in_normal(self.output_gain), name="down_proj"
        )
        return output(hidden)
