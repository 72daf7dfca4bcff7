"""How rotary frequencies are changed to reach further than a model was trained. Importing it imports no JAX.

Sources: position interpolation (arXiv 2306.15595, `linear`), NTK-aware interpolation (`dynamic`), YaRN
(arXiv 2309.00071), LongRoPE (arXiv 2402.13753) and Llama 3.1 (arXiv 2407.21783, `llama3`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

from dew.nn.ranges import check_positive

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
FACTORS = ("factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "attention_factor")
"""Fields that hold a number above 0."""


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
        mscale: of yarn, numerator of the attention factor. Where it or `mscale_all_dim` is 0 or None, neither
            is read for that.
        mscale_all_dim: of yarn, its denominator.
        truncate: of yarn; round the ends of the ramp outwards to whole pairs.
        short_factors: of longrope, a divisor for each pair, for rows up to `original_length`.
        long_factors: of longrope, likewise for longer rows.

    Raises:
        TypeError: a field that takes a number holds none.
        ValueError: a field the kind needs is missing, or one is set that it does not read; a number that is
            not finite and above 0 (`mscale` and `mscale_all_dim` may be 0); or limits in the wrong order.
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
        self._check_numbers()
        self._check_order()

    def _check_numbers(self) -> None:
        for name in FACTORS:
            check_positive(f"rotary scaling {name}", getattr(self, name))
        for name in ("mscale", "mscale_all_dim"):
            check_positive(f"rotary scaling {name}", getattr(self, name), zero=True)
        for name in ("short_factors", "long_factors"):
            for index, factor in enumerate(getattr(self, name) or ()):
                check_positive(f"rotary scaling {name}[{index}]", factor)
        # The attention factor of longrope divides by its logarithm.
        least = 2 if self.kind == "longrope" and self.attention_factor is None else 1
        if self.original_length is not None and self.original_length < least:
            raise ValueError(
                f"rotary scaling original_length={self.original_length} must be at least {least}"
            )

    def _check_order(self) -> None:
        low, high = self.low_freq_factor, self.high_freq_factor
        if low is not None and high is not None and low > high:
            raise ValueError(
                f"rotary scaling low_freq_factor={low} must not be above high_freq_factor={high}: longer "
                "wavelengths are stretched, shorter ones stay; swap them"
            )
        if self.kind == "yarn" and self.slow > self.fast:
            raise ValueError(
                f"rotary scaling beta_slow={self.slow} must not be above beta_fast={self.fast}: pairs with "
                "fewer turns are stretched, those with more stay; swap them"
            )

    @property
    def fast(self) -> float:
        """`beta_fast`, 32 where it is not set."""
        return 32.0 if self.beta_fast is None else self.beta_fast

    @property
    def slow(self) -> float:
        """`beta_slow`, 1 where it is not set."""
        return 1.0 if self.beta_slow is None else self.beta_slow

    @property
    def by_length(self) -> bool:
        """Whether the frequencies depend on how long a row is."""
        return self.kind in ("dynamic", "longrope")
