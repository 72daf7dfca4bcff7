"""A mixture of experts without capacity: every token reaches every expert it chose, whatever their loads.

Dimensions: B rows, S tokens, D model width, F inner width, K experts of a token, G experts of a bank. The
pairs of a token and an expert are sorted by expert, and one grouped product serves each projection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype
from jaxtyping import Array, Float, Int

from dew.nn.expert_rows import over_expert_groups
from dew.nn.mlp import GATES, Activation, squared_relu
from dew.nn.moe.config import Mixture
from dew.nn.moe.router import Choice, Router
from dew.nn.sharding import named_axes

type Bank = Mapping[str, jax.Array]
"""`up_proj` and, where the activation is gated, `gate_proj` [G, D, F], and `down_proj` [G, F, D]."""

type GroupedProduct = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


class MixtureOfExperts(nn.Module):
    """`sum over chosen e of weight_e block_e(x)`.

    Attributes:
        mixture: experts and their choice.
        width: F.
        activation: of every block.
        output_gain: scale of the output projections' initial values.
        dtype: computes; scores are float32 or wider.
        param_dtype: stores.
        precision: of every product.
    """

    mixture: Mixture
    width: int
    activation: Activation = "swiglu"
    output_gain: float = 1.0
    dtype: Dtype = jnp.float32
    param_dtype: Dtype = jnp.float32
    precision: jax.lax.PrecisionLike = None

    @nn.compact
    def __call__(self, x: Float[Array, "B S D"]) -> Float[Array, "B S D"]:
        choice = Router(self.mixture, self.param_dtype, self.precision, name="gate")(x)
        bank = self._bank(x.shape[-1])
        blocks = partial(mixed, activation=self.activation, product=self.grouped_product)
        return over_expert_groups(blocks, (x.astype(self.dtype), choice), bank)

    def grouped_product(
        self, tokens: Float[Array, "N D"], weights: Float[Array, "G D F"], sizes: Int[Array, " G"]
    ) -> Float[Array, "N F"]:
        """Rows times the weight of their group: a call of its own, for quantized training.

        Args:
            tokens: sorted by group; rows after the last group give what no one reads.
            weights: of every group.
            sizes: rows of each group.
        """
        return jax.lax.ragged_dot(tokens, weights, sizes, precision=self.precision)

    def _bank(self, model_width: int) -> Bank:
        experts, width = self.mixture.num_experts, self.width
        names = ("up_proj",) if self.activation == "relu2" else ("gate_proj", "up_proj")
        inner = named_axes(expert_normal(1.0), "expert", "embed", "mlp")
        outer = named_axes(expert_normal(self.output_gain), "expert", "mlp", "embed")
        bank: dict[str, jax.Array] = {
            name: self.param(f"experts_{name}", inner, (experts, model_width, width), self.param_dtype)
            for name in names
        }
        bank["down_proj"] = self.param(
            "experts_down_proj", outer, (experts, width, model_width), self.param_dtype
        )
        return {name: weight.astype(self.dtype) for name, weight in bank.items()}


def expert_normal(gain: float) -> jax.nn.initializers.Initializer:
    """`fan_in_normal` for stacked kernels: each expert has its own fan."""
    return nn.initializers.variance_scaling(gain**2, "fan_in", "truncated_normal", batch_axis=(0,))


def mixed(
    rows: tuple[jax.Array, Choice],
    bank: Bank,
    first: jax.Array | int,
    *,
    activation: Activation,
    product: GroupedProduct,
) -> Float[Array, "B S D"]:
    """The part of the mixture's output that the experts of one bank compute.

    Args:
        rows: [B, S, D] and the choice of each token.
        bank: experts `first` to `first + G`.
        first: the number of the bank's first expert.
        activation: of every block.
        product: of sorted rows and a bank's projection, by group sizes.
    """
    x, choice = rows
    groups, chosen = bank["up_proj"].shape[0], choice.experts.shape[-1]
    expert = choice.experts.reshape(-1) - first
    here = (expert >= 0) & (expert < groups)
    # Pairs of other banks sort behind all groups, where no product reads them.
    key = jnp.where(here, expert, groups)
    order = jnp.argsort(key, stable=True)
    sizes = jnp.sum(key[:, None] == jnp.arange(groups), axis=0, dtype=jnp.int32)
    tokens = x.reshape(-1, x.shape[-1])
    outputs = _blocks(tokens[order // chosen], bank, sizes, activation, product)
    back = jnp.argsort(order)
    pairs = jnp.where(here[:, None], outputs[back], 0).reshape(*choice.experts.shape, -1)
    return jnp.sum(pairs * choice.weights[..., None].astype(pairs.dtype), axis=-2)


def _blocks(
    tokens: jax.Array, bank: Bank, sizes: jax.Array, activation: Activation, product: GroupedProduct
) -> jax.Array:
    hidden = product(tokens, bank["up_proj"], sizes)
    if activation == "relu2":
        hidden = squared_relu(hidden)
    else:
        hidden = GATES[activation](product(tokens, bank["gate_proj"], sizes)) * hidden
    return product(hidden, bank["down_proj"], sizes)
