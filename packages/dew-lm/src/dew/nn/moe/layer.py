"""A mixture of experts without capacity: every token reaches every expert it chose, whatever their loads.

Dimensions: B rows, S tokens, D model width, F inner width, K experts of a token, G experts of a bank.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype
from jaxtyping import Array, Float, Int

from dew.nn.dense import fan_in_normal
from dew.nn.expert_rows import over_expert_groups
from dew.nn.grouped_product import grouped_product
from dew.nn.mlp import PLAIN, Activation, FeedForward
from dew.nn.moe.blocks import Bank, Blocks, mixed
from dew.nn.moe.config import Mixture
from dew.nn.moe.router import Router
from dew.nn.moe.routes import RouterRows
from dew.nn.sharding import named_axes


class MixtureOfExperts(nn.Module):
    """`sum over chosen e of weight_e block_e(x)`, plus the shared block where the mixture has one.

    A device with G of the experts works on `n min(K, G)` rows of width D and F, where n counts the tokens of
    its expert group (its own, times the devices of the mesh's `expert` axis): the most that its experts can
    get. No load, however uneven, needs more, so no token is dropped.

    Attributes:
        mixture: experts and their choice.
        width: F.
        activation: of every block without a gate of its own.
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
    def __call__(self, x: Float[Array, "B S D"], rows: RouterRows | None = None) -> Float[Array, "B S D"]:
        """Mix.

        Args:
            x: [B, S, D].
            rows: what the router is told about the tokens.
        """
        choice = Router(self.mixture, self.param_dtype, self.precision, name="gate")(x, rows)
        bank = self._bank(x.shape[-1])
        law = self.mixture
        blocks = Blocks(self.activation, law.gate, law.weigh_inputs, self.grouped_product)
        routed = over_expert_groups(partial(mixed, blocks=blocks), (x.astype(self.dtype), choice), bank)
        return routed if law.shared is None else routed + self._shared(x)

    def grouped_product(
        self, tokens: Float[Array, "N D"], weights: Float[Array, "G D F"], sizes: Int[Array, " G"]
    ) -> Float[Array, "N F"]:
        """Rows times the weight of their group: a call of its own, for quantized training.

        Args:
            tokens: sorted by group; rows after the last group give what no one reads.
            weights: of every group.
            sizes: rows of each group.
        """
        return grouped_product(tokens, weights, sizes, self.precision)

    def _bank(self, model_width: int) -> Bank:
        experts, width = self.mixture.num_experts, self.width
        gated = self.mixture.gate is not None or self.activation not in PLAIN
        names = ("gate_proj", "up_proj") if gated else ("up_proj",)
        inner = named_axes(expert_normal(1.0), "expert", "embed", "mlp")
        outer = named_axes(expert_normal(self.output_gain), "expert", "mlp", "embed")
        bank: dict[str, jax.Array] = {
            name: self.param(f"experts_{name}", inner, (experts, model_width, width), self.param_dtype)
            for name in names
        }
        bank["down_proj"] = self.param(
            "experts_down_proj", outer, (experts, width, model_width), self.param_dtype
        )
        if self.mixture.expert_bias:
            bank |= {f"{name}_bias": self._bias(name, weight) for name, weight in bank.items()}
        return {name: weight.astype(self.dtype) for name, weight in bank.items()}

    def _bias(self, name: str, weight: jax.Array) -> jax.Array:
        side = "embed" if name == "down_proj" else "mlp"
        zeros = named_axes(nn.initializers.zeros_init(), "expert", side)
        shape = (weight.shape[0], weight.shape[-1])
        return self.param(f"bias_{name}", zeros, shape, self.param_dtype)

    def _shared(self, x: jax.Array) -> jax.Array:
        shared = self.mixture.shared
        assert shared is not None, "asked for where the mixture has a shared block"
        numerics = self.activation, self.output_gain, self.dtype, self.param_dtype, self.precision
        output = FeedForward(shared.intermediate_size, *numerics, name="shared_expert")(x)
        if not shared.gated:
            return output
        gate = SharedGate(self.param_dtype, self.precision, name="shared_expert_gate")(x)
        return output * gate.astype(output.dtype)


class SharedGate(nn.Module):
    """`sigmoid(x w)`, in float32 or wider.

    Attributes:
        param_dtype: stores.
        precision: of the product.
    """

    param_dtype: Dtype = jnp.float32
    precision: jax.lax.PrecisionLike = None

    @nn.compact
    def __call__(self, x: Float[Array, "B S D"]) -> Float[Array, "B S 1"]:
        kernel: jax.Array = self.param(
            "kernel", named_axes(fan_in_normal(), "embed", None), (x.shape[-1], 1), self.param_dtype
        )
        wide = jnp.promote_types(x.dtype, jnp.float32)
        return jax.nn.sigmoid(jnp.dot(x.astype(wide), kernel.astype(wide), precision=self.precision))


def expert_normal(gain: float) -> jax.nn.initializers.Initializer:
    """`fan_in_normal` for stacked kernels: each expert has its own fan."""
    return nn.initializers.variance_scaling(gain**2, "fan_in", "truncated_normal", batch_axis=(0,))
