"""The grid: the noise levels a trajectory walks, as host arrays that solvers read by index.

By itself a grid is spaced as in EDM (arXiv:2206.00364, equation 5), or evenly in log-SNR, or evenly in time
where the schedule begins without any signal. Times that are even in the index of a table of betas are no
default there: their last interval spans most of the log-SNR, and no solver shows its order on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dew.diffusion.choices import check_choice
from dew.diffusion.process import SPACINGS, Process, Spacing

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, eq=False)
class Grid:
    """Noise levels from the noisiest on, float64 on the host, all of one length.

    Grids are equal where their numbers are, so that one can be a static argument of a compiled function.

    Attributes:
        time: the process's own time.
        alpha: the factor of the signal.
        sigma: the factor of the noise; 0 at the last point at most.
        noise_level: what the model is told.
        flow: whether steps follow `sigma / (alpha + sigma)` instead of `sigma / alpha`.

    Raises:
        ValueError: arrays of other lengths, no point at all, or noise that does not fall from each point to
            the next.
    """

    time: np.ndarray
    alpha: np.ndarray
    sigma: np.ndarray
    noise_level: np.ndarray
    flow: bool = False

    def __post_init__(self) -> None:
        for name in ("time", "alpha", "sigma", "noise_level"):
            values = np.array(getattr(self, name), np.float64)
            if values.ndim != 1 or values.shape != np.shape(self.time) or not values.size:
                raise ValueError(
                    f"grid.{name} of shape {values.shape} must be a list as long as time, of at least 1"
                )
            values.setflags(write=False)
            object.__setattr__(self, name, values)
        fraction = self.sigma / (self.alpha + self.sigma)
        stuck = np.flatnonzero(~(np.diff(fraction) < 0))
        if stuck.size:
            at = int(stuck[0])
            raise ValueError(
                f"the noise must fall from each point of a grid to the next, but points {at} and {at + 1} "
                f"have sigma {self.sigma[at]:g} and {self.sigma[at + 1]:g}; an empty step leaves noise"
            )

    def _content(self) -> tuple[bytes | bool, ...]:
        arrays = self.time, self.alpha, self.sigma, self.noise_level
        return (*(each.tobytes() for each in arrays), self.flow)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Grid) and self._content() == other._content()

    def __hash__(self) -> int:
        return hash(self._content())

    def __len__(self) -> int:
        return len(self.time)

    @property
    def ratio(self) -> np.ndarray:
        """`sigma / alpha` of every point; infinite where there is no signal."""
        with np.errstate(divide="ignore"):
            return self.sigma / self.alpha

    @property
    def scale(self) -> np.ndarray:
        """What a sample is divided by so that its path is straight between constant estimates."""
        return self.alpha + self.sigma if self.flow else self.alpha

    @property
    def ends_clean(self) -> bool:
        """Whether the last point has no noise."""
        return bool(self.sigma[-1] == 0)

    def closed(self) -> Grid:
        """This grid with a last point without noise; itself where it has one.

        A step there ends at the estimate of x0, whatever the solver, and nothing is evaluated at it.
        """
        if self.ends_clean:
            return self
        return Grid(
            time=np.append(self.time, 0.0),
            alpha=np.append(self.alpha, 1.0),
            sigma=np.append(self.sigma, 0.0),
            noise_level=np.append(self.noise_level, np.nan),
            flow=self.flow,
        )


def grid(process: Process, steps: int, *, spacing: Spacing | None = None) -> Grid:
    """The noise levels of a trajectory of `steps` evaluations.

    `karras`: `ratio_i = (hi^(1/rho) + i / (steps - 1) (lo^(1/rho) - hi^(1/rho)))^rho`. `log_snr`: the same in
    the limit of a large rho. `time`: even in the process's time, from its first time, with the shift of a
    flow applied once.

    Raises:
        ValueError: fewer than one step, an unknown spacing, or one by ratio where a ratio is 0 or infinite.
    """
    if steps < 1:
        raise ValueError(f"steps={steps} must be at least 1")
    chosen = process.spacing if spacing is None else spacing
    check_choice("spacing", chosen, SPACINGS)
    if chosen == "time":
        return at_times(process, process.schedule.even_times(steps))
    low, high = process.schedule.ratios
    if not 0 < low < high < np.inf:
        raise ValueError(
            f"spacing={chosen!r} needs a positive finite noise-to-signal ratio at both ends, and this "
            f"schedule goes from {low:g} to {high:g}; use spacing='time'"
        )
    along = np.linspace(0.0, 1.0, steps)
    if chosen == "karras":
        ends = high ** (1 / process.rho), low ** (1 / process.rho)
        ratios = (ends[0] + along * (ends[1] - ends[0])) ** process.rho
    else:
        ratios = np.exp(np.log(high) + along * (np.log(low) - np.log(high)))
    return at_times(process, process.schedule.time_of(ratios))


def at_times(process: Process, times: Sequence[float] | np.ndarray) -> Grid:
    """The grid through the given process times, the noisiest first.

    Raises:
        ValueError: times whose noise does not fall, or that the schedule does not have.
    """
    time = np.asarray(times, np.float64)
    if time.size and not (np.isfinite(time).all() and time.min() >= 0):
        raise ValueError(f"times={time.tolist()} must be finite and not negative")
    if time.size and time.max() > process.schedule.first_time * (1 + 1e-12):
        raise ValueError(
            f"times begin at {time.max():g}, beyond the schedule's first time {process.schedule.first_time:g}"
        )
    with np.errstate(divide="ignore"):
        told = np.asarray(process.schedule.noise_level(time))
    return Grid(
        time=time,
        alpha=np.asarray(process.alpha(time)),
        sigma=np.asarray(process.sigma(time)),
        noise_level=told,
        flow=process.schedule.flow,
    )
