"""Variance-preserving schedules given by a table of betas (Ho et al. 2020, arXiv:2006.11239), and their
rescaling to no signal at the end (Lin et al. 2023, arXiv:2305.08891, algorithm 1)."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from dew.diffusion.choices import check_choice
from dew.diffusion.schedules.base import numerics

if TYPE_CHECKING:
    from dew.diffusion.schedules.base import Array


@dataclass(frozen=True)
class BetaTable:
    """`alpha(t)^2 = prod_{i <= t} (1 - beta_i)`, `alpha^2 + sigma^2 = 1`, t an index from 0.

    Between two indices log(sigma / alpha) is linear in t. A model is told t.

    Attributes:
        beta_start: the first beta.
        beta_end: the last beta.
        timesteps: entries of the table.
        betas: `linear` spaces the betas evenly, `scaled_linear` their square roots.
        zero_terminal_snr: rescale alpha so that it ends at exactly 0; the first entry stays.

    Raises:
        ValueError: not `0 < beta_start <= beta_end < 1`, fewer than two entries, or betas of another name.
    """

    beta_start: float = 1e-4
    beta_end: float = 0.02
    timesteps: int = 1000
    betas: Literal["linear", "scaled_linear"] = "linear"
    zero_terminal_snr: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.beta_start <= self.beta_end < 1:
            raise ValueError(
                f"beta_start={self.beta_start} and beta_end={self.beta_end} must satisfy "
                "0 < beta_start <= beta_end < 1"
            )
        if self.timesteps < 2:
            raise ValueError(f"timesteps={self.timesteps} must be at least 2")
        check_choice("betas", self.betas, ("linear", "scaled_linear"))

    @property
    def first_time(self) -> float:
        return self.timesteps - 1.0

    @property
    def zero_snr(self) -> bool:
        return self.zero_terminal_snr

    @property
    def flow(self) -> bool:
        return self.zero_terminal_snr

    @property
    def ratios(self) -> tuple[float, float]:
        logs = log_ratios(self)
        return float(np.exp(logs[0])), float(np.exp(logs[-1]))

    def _log_ratio(self, t: Array) -> Array:
        xp = numerics(t)
        table = xp.asarray(log_ratios(self), t.dtype)
        below = xp.clip(xp.floor(t), 0, self.timesteps - 2).astype(int)
        rest = t - below
        # The table may end at infinity, which a weight of zero would turn into NaN.
        with np.errstate(invalid="ignore"):
            between = (1 - rest) * table[below] + rest * table[below + 1]
        return xp.where(rest == 0, table[below], xp.where(rest == 1, table[below + 1], between))

    def alpha(self, t: Array, /) -> Array:
        xp = numerics(t)
        return 1 / xp.sqrt(1 + xp.exp(2 * self._log_ratio(t)))

    def sigma(self, t: Array, /) -> Array:
        xp = numerics(t)
        return 1 / xp.sqrt(1 + xp.exp(-2 * self._log_ratio(t)))

    def noise_level(self, t: Array, /) -> Array:
        return t

    def time_of(self, ratio: np.ndarray, /) -> np.ndarray:
        logs = log_ratios(self)
        end = len(logs) - 1 if self.zero_terminal_snr else len(logs)
        return np.interp(np.log(ratio), logs[:end], np.arange(end, dtype=np.float64))

    def even_times(self, steps: int, /) -> np.ndarray:
        """Whole indices, counted from the last: 999, 749, 499, 249 for four of a thousand.

        Raises:
            ValueError: more steps than entries.
        """
        if steps > self.timesteps:
            raise ValueError(
                f"steps={steps} exceeds the {self.timesteps} entries of the table; use fewer, or the "
                "karras or log_snr spacing"
            )
        return np.round(self.timesteps * (1 - np.arange(steps, dtype=np.float64) / steps)) - 1


@functools.lru_cache(maxsize=32)
def log_ratios(table: BetaTable) -> np.ndarray:
    """`log(sigma / alpha)` of every entry, float64; the last is infinite where no signal is left."""
    if table.betas == "linear":
        betas = np.linspace(table.beta_start, table.beta_end, table.timesteps, dtype=np.float64)
    else:
        betas = np.linspace(table.beta_start**0.5, table.beta_end**0.5, table.timesteps) ** 2
    alphas = np.sqrt(np.cumprod(1 - betas))
    if table.zero_terminal_snr:
        alphas = (alphas - alphas[-1]) * alphas[0] / (alphas[0] - alphas[-1])
    with np.errstate(divide="ignore"):
        ratios = (np.log1p(-(alphas**2)) - 2 * np.log(alphas)) / 2
    ratios.setflags(write=False)
    return ratios
