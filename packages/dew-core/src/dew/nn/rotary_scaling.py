"""How rotary frequencies are changed to reach further than a model was trained. Importing it imports no JAX.

Sources: position interpolation (arXiv 2306.15595, `linear`), NTK-aware interpolation (`dynamic`), YaRN
(arXiv 2309.00071), LongRoPE (arXiv 2402.13753) and Llama 3.1 (arXiv 2407.21783, `llama3`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

type ScalingKind = Literal["linear", "dynamic", "llama3", "yarn", "longrope"]

NEEDED: Mapping[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "dynamic": ("factor", "original_length"),
    "llama3": ("factor", "original_length", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor", "original_length"),
    "longrope": ("factor", "original_length", "short_factors", "long_factors"),
}
"""Kind -> the fields it cannot do without."""
OPTIONAL: Mapping[str, tuple[str, ...]] = {
    "yarn": ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    "longrope": ("attention_factor",),
}
"""Kind -> the further fields it reads."""


@dataclass(frozen=True, kw_only=True)
class RotaryScaling:
    """A change of the rotary frequencies; `dew.nn.frequencies` has the formulas.

    Attributes:
        kind: which one.
        factor: how many times longer than `original_length` the rows become.
        original_length: positions the model was trained on before.
        low_freq_factor: of llama3; wavelengths above `original_length / low_freq_factor` are stretched whole.
        high_freq_factor: of llama3; wavelengths below `original_length / high_freq_factor` stay.
        beta_fast: of yarn; pairs with more turns over `original_length` stay. None is 32.
        beta_slow: of yarn; pairs with fewer turns are stretched whole. None is 1.
        attention_factor: of yarn and longrope, multiplies cosines and sines; None takes the kind's formula.
        mscale: of yarn, numerator of the attention factor.
        mscale_all_dim: of yarn, its denominator.
        truncate: of yarn; round the ends of the ramp outwards to whole pairs.
        short_factors: of longrope, a divisor for each pair, for rows up to `original_length`.
        long_factors: of longrope, likewise for longer rows.

    Raises:
        ValueError: a field the kind needs is missing, or one is set that it does not read.
    """

    kind: ScalingKind
    factor: float | None = None
    original_length: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factors: tuple[float, ...] | None = None
    long_factors: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.kind not in NEEDED:
            raise ValueError(f"rotary scaling kind={self.kind!r} must be one of {', '.join(NEEDED)}")
        read = ("kind", *NEEDED[self.kind], *OPTIONAL.get(self.kind, ()))
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name in NEEDED[self.kind] and value is None:
                raise ValueError(f"rotary scaling {self.kind} needs {each.name}; it takes {', '.join(read)}")
            if each.name not in read and value != each.default:
                raise ValueError(
                    f"rotary scaling {self.kind} does not read {each.name}={value!r}; leave it out"
                )

    @property
    def by_length(self) -> bool:
        """Whether the frequencies depend on how long a row is."""
        return self.kind in ("dynamic", "longrope")
