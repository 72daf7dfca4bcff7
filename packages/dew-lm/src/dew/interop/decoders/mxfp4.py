"""Tensors stored as MXFP4 (OCP Microscaling Formats 1.0): four bits a value, one power of two for 32 of them.

Two values stand in a byte, the first in its low half. A value is `(-1)^s x 2^(scale - 127)` with x of
`MAGNITUDES`, and a scale of 255 is not a number. They are read as bfloat16, which holds all of them, and
never written: what is saved is in the dtype of the parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from dew.interop.decoders.stored import StoredTensor

MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Of the lower three bits; the fourth is the sign."""
BLOCKS, SCALES = "_blocks", "_scales"
BYTES = 16
"""Of the values that share a scale."""
BIAS, NOT_A_NUMBER = 127, 255


@dataclass(frozen=True)
class PackedTensor(StoredTensor):
    """A packed tensor [E, columns, G, 16] as the stack of matrices [E, 32 G, columns] that it holds.

    Attributes:
        scales: [E, columns, G].
    """

    scales: StoredTensor

    def read(self) -> np.ndarray:
        """The values. Both files are mapped for as long as that takes."""
        return values_of(super().read(), self.scales.read()).astype(jnp.bfloat16)


def unpacked(stored: Mapping[str, StoredTensor], quantization: Any) -> Mapping[str, StoredTensor]:
    """`stored` with a tensor for each pair of blocks and scales.

    Args:
        stored: the tensors of a folder.
        quantization: its `quantization_config`; None where nothing is packed.

    Raises:
        ValueError: another kind of packing; blocks without scales, or of shapes that do not belong together.
    """
    if quantization is None:
        return stored
    kind = quantization.get("quant_method")
    if kind != "mxfp4":
        raise ValueError(
            f"config.json quantization_config of quant_method={kind!r}: only weights of 'mxfp4' are read "
            "packed; take the model's unquantized folder, or dequantize it and save it in bfloat16"
        )
    found = {name: tensor for name, tensor in stored.items() if not name.endswith((BLOCKS, SCALES))}
    for name, blocks in stored.items():
        if name.endswith(BLOCKS):
            whole = name.removesuffix(BLOCKS)
            found[whole] = _packed(whole, blocks, stored.get(f"{whole}{SCALES}"))
    return found


def _packed(name: str, blocks: StoredTensor, scales: StoredTensor | None) -> PackedTensor:
    if scales is None:
        raise ValueError(f"the folder lacks the tensor {name}{SCALES}, the scales of {name}{BLOCKS}")
    fits = len(blocks.shape) == 4 and blocks.shape[-1] == BYTES and scales.shape == blocks.shape[:-1]
    if not fits or {blocks.dtype, scales.dtype} != {"U8"}:
        raise ValueError(
            f"the tensor {blocks.name} is {blocks.dtype}{list(blocks.shape)} with scales "
            f"{scales.dtype}{list(scales.shape)}; mxfp4 has bytes [experts, columns, groups, {BYTES}] and "
            "[experts, columns, groups]"
        )
    experts, columns, groups, _ = blocks.shape
    shape = (experts, 2 * BYTES * groups, columns)
    return PackedTensor(blocks.path, blocks.name, shape, "BF16", scales)


def values_of(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The float32 matrices [E, 32 G, columns] of blocks [E, columns, G, 16] and scales [E, columns, G]."""
    table = np.array([*MAGNITUDES, *(-each for each in MAGNITUDES)], np.float32)
    halves = np.stack([blocks & 0x0F, blocks >> 4], axis=-1)
    powers = np.where(scales == NOT_A_NUMBER, BIAS, scales).astype(np.int32) - BIAS
    values = np.ldexp(table[halves], powers[..., None, None])
    values[scales == NOT_A_NUMBER] = np.nan
    return values.reshape(*blocks.shape[:2], -1).swapaxes(1, 2)
