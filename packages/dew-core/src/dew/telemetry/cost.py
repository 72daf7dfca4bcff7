"""What a training step has to compute: its model FLOPs, by the formula of the model's family."""

from __future__ import annotations

from dataclasses import dataclass

CONVENTION = (
    "2 FLOPs for each multiply-add of a matrix product, backward twice the forward; "
    "recomputation, elementwise work and embedding look-ups are not counted"
)
"""What every family counts; what is particular to one stands in its own `StepCost.counts`."""


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """The model FLOPs of one training step on one batch.

    They are what the mathematics of the step needs, whatever the program that computes it does besides. A
    compiler's own count is another number: it misses fused kernels and counts recomputation.

    Attributes:
        flops: of all rows of the global batch, forward and backward.
        dtype: name of the dtype the products compute in, as in `bfloat16`.
        counts: what is counted beyond `CONVENTION`, such as the causal half of the attention.
    """

    flops: float
    dtype: str
    counts: str
