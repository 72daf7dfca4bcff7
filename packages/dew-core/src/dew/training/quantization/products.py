"""Products in a narrow type, through Qwix, with straight-through gradients.

An operand x is replaced by `s q`, with q in the narrow type. Every row of the activations and every column
of the weights has a scale of its own, `s = max |x| / B`, where B is 127 for int8 and 448 for float8_e4m3fn,
and `q` is `x / s` rounded to the type (Jacob et al., arXiv 1712.05877; Micikevicius et al., arXiv
2209.05433). The product of the q is scaled back. Gradients are those of the plain product at the operands
that were not rounded (Bengio et al., arXiv 1308.3432).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dew.nn.grouped_product import grouped_product
from dew.nn.varying import alike
from dew.training.quantization.config import Quantization, QuantizedDtype

CALIBRATION: Mapping[QuantizedDtype, str] = {"int8": f"absmax,{127.5 / 127}", "float8_e4m3fn": "absmax"}
"""Qwix's names of the scales. Its plain `absmax` divides by 127.5 for int8, which puts the largest entry
where the last bit decides between -127 and -128; a program compiled for another mesh would round otherwise.
"""

PLAIN = (((1,), (0,)), ((), ()))
"""Dimension numbers of `x @ kernel`."""


def narrow_product(
    x: Float[Array, "N D"], kernel: Float[Array, "D F"], spec: Quantization
) -> Float[Array, "N F"]:
    """`x @ kernel` with both sides quantized as `spec` says; the result has the dtype of `x`."""
    return _narrow(*alike(x, kernel), spec.weights, spec.activations).astype(x.dtype)


def narrow_grouped_product(
    x: Float[Array, "N D"], kernels: Float[Array, "G D F"], sizes: Int[Array, " G"], spec: Quantization
) -> Float[Array, "N F"]:
    """The grouped product of sorted rows and their group's kernel, quantized as `spec` says.

    The columns of every group have scales of their own.
    """
    return _narrow_grouped(*alike(x, kernels, sizes), spec.weights, spec.activations).astype(x.dtype)


def require_qwix() -> Any:
    """The library.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import qwix
    except ImportError as missing:
        raise ImportError(
            "trainer.quantization needs Qwix: pip install 'dew-core[quantization]'"
        ) from missing
    return qwix


def _quantized(x: jax.Array, dtype: QuantizedDtype | None, *axes: int) -> Any:
    if dtype is None:
        return x
    return require_qwix().quantize(
        x, jnp.dtype(dtype), channelwise_axes=axes, calibration_method=CALIBRATION[dtype]
    )


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _narrow(
    x: jax.Array, kernel: jax.Array, weights: QuantizedDtype, activations: QuantizedDtype | None
) -> jax.Array:
    return require_qwix().dot_general(_quantized(x, activations, 0), _quantized(kernel, weights, 1), PLAIN)


def _narrow_forward(x: jax.Array, kernel: jax.Array, weights: Any, activations: Any) -> Any:
    return _narrow(x, kernel, weights, activations), (x, kernel)


def _narrow_backward(weights: Any, activations: Any, kept: Any, cotangent: jax.Array) -> Any:
    x, kernel = kept
    cotangent = cotangent.astype(x.dtype)
    return cotangent @ kernel.T, x.T @ cotangent


_narrow.defvjp(_narrow_forward, _narrow_backward)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _narrow_grouped(
    x: jax.Array,
    kernels: jax.Array,
    sizes: jax.Array,
    weights: QuantizedDtype,
    activations: QuantizedDtype | None,
) -> jax.Array:
    narrow_kernels = _quantized(kernels, weights, 0, 2)
    return require_qwix().ragged_dot(_quantized(x, activations, 0), narrow_kernels, sizes)


def _grouped_forward(x: Any, kernels: Any, sizes: Any, weights: Any, activations: Any) -> Any:
    return _narrow_grouped(x, kernels, sizes, weights, activations), (x, kernels, sizes)


def _grouped_backward(weights: Any, activations: Any, kept: Any, cotangent: jax.Array) -> Any:
    x, kernels, sizes = kept
    _, pull = jax.vjp(lambda x, kernels: grouped_product(x, kernels, sizes), x, kernels)
    return *pull(cotangent.astype(x.dtype)), None


_narrow_grouped.defvjp(_grouped_forward, _grouped_backward)
