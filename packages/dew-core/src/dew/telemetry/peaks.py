"""Published peaks of matrix products, by the device kind that JAX reports.

Dense figures: a data sheet that halves zeros (sparsity) doubles them.
"""

from __future__ import annotations

from collections.abc import Mapping

PEAKS: Mapping[str, Mapping[str, float]] = {
    # NVIDIA's data sheets; the PCIe boards run at lower clocks than the SXM modules.
    "NVIDIA A100": {"bfloat16": 312e12, "float16": 312e12},
    "NVIDIA H100 PCIe": {"bfloat16": 756e12, "float16": 756e12},
    "NVIDIA H100 NVL": {"bfloat16": 835e12, "float16": 835e12},
    "NVIDIA H100": {"bfloat16": 989e12, "float16": 989e12},
    "NVIDIA H200 NVL": {"bfloat16": 835e12, "float16": 835e12},
    "NVIDIA H200": {"bfloat16": 989e12, "float16": 989e12},
    "NVIDIA GH200": {"bfloat16": 989e12, "float16": 989e12},
    # Google's system architecture pages, a chip; JAX calls v5e and v6e "lite".
    "TPU v4": {"bfloat16": 275e12},
    "TPU v5 lite": {"bfloat16": 197e12},
    "TPU v5e": {"bfloat16": 197e12},
    "TPU v5p": {"bfloat16": 459e12},
    "TPU v5": {"bfloat16": 459e12},
    "TPU v6 lite": {"bfloat16": 918e12},
    "TPU v6e": {"bfloat16": 918e12},
}
"""Beginning of a device kind -> compute dtype -> FLOP/s of one device.

A kind's longest beginning counts. float32 is in no row: which unit serves it depends on the precision asked
for.
"""

LESSER = ("TPU v4 lite",)
"""Kinds that begin like one in the table and are slower, inference chips without a published row here."""


def peak_flops(device_kind: str, dtype: str) -> float | None:
    """The peak FLOP/s of one device in `dtype`, or None where the table has no row for it (a CPU)."""
    if device_kind.startswith(LESSER):
        return None
    known = [
        name for name in PEAKS if device_kind == name or device_kind.startswith((f"{name} ", f"{name}-"))
    ]
    return PEAKS[max(known, key=len)].get(dtype) if known else None
