"""Feed-forward blocks: SwiGLU, GEGLU (arXiv 2002.05202) and squared ReLU (arXiv 2109.08668)."""

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

type Activation = Literal["swiglu", "geglu", "relu2"]
"""A feed-forward block: `swiglu` and `geglu` are gated, `relu2` is not."""

GATES: Mapping[str, Callable[[jax.Array], jax.Array]] = {
    "swiglu": jax.nn.silu,
    "geglu": partial(jax.nn.gelu, approximate=True),
}
"""The gate's nonlinearity; GEGLU uses the tanh form of GELU, as Gemma does."""

ACTIVATIONS = (*GATES, "relu2")


def squared_relu(x: jax.Array) -> jax.Array:
    """Return `max(x, 0)^2`."""
    return jnp.square(jax.nn.relu(x))


class FeedForward(nn.Module):
    """`down(gate(x W_g) * (x W_u))`, or `down(relu(x W_u)^2)` for `relu2`.

    Attributes:
        width: of the hidden layer.
        activation: which block.
        output_gain: scale of the output projection's initial values.
        dtype: computes.
        param_dtype: stores.
        precision: of every product.
    """

    width: int
    activation: Activation = "swiglu"
    output_gain: float = 1.0
    dtype: Dtype = jnp.float32
    param_dtype: Dtype = jnp.float32
    precision: jax.lax.PrecisionLike = None

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        dense = partial(Dense, dtype=self.dtype, param_dtype=self.param_dtype, precision=self.precision)
        hidden = dense(self.width, ("embed", "mlp"), name="up_proj")(x)
        if self.activation == "relu2":
            hidden = squared_relu(hidden)
        else:
            gate = dense(self.width, ("embed", "mlp"), name="gate_proj")(x)
            hidden = GATES[self.activation](gate) * hidden
        output = dense(
            x.shape[-1], ("mlp", "embed"), kernel_init=fan_in_normal(self.output_gain), name="down_proj"
        )
        return output(hidden)
