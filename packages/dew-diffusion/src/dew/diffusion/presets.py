"""Processes as a run's configuration names them. Importing this module imports neither jax nor numpy."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from dew.diffusion.choices import check_choice

if TYPE_CHECKING:
    from dew.diffusion.process import Process


@dataclass(frozen=True, kw_only=True)
class PresetSpec(ABC):
    """A process as a record; `build` makes it."""

    component_kind: ClassVar[str] = "preset"
    positive: ClassVar[tuple[str, ...]] = ()
    """The fields that must be positive and finite."""

    def __post_init__(self) -> None:
        for name in self.positive:
            value: float = getattr(self, name)
            if not 0 < value < math.inf:
                raise ValueError(f"preset.{name}={value} must be positive and finite")

    @abstractmethod
    def build(self) -> Process:
        """The process of this record.

        Raises:
            ValueError: a prediction that the schedule does not allow.
        """


@dataclass(frozen=True, kw_only=True)
class EDM(PresetSpec):
    """Noise of growing variance, a preconditioned network, log-normal training noise (arXiv:2206.00364).

    Attributes:
        sigma_min: least noise level that is sampled at.
        sigma_max: noise level where sampling starts.
        rho: exponent of the sampling grid.
        sigma_data: standard deviation of the data.
        log_mean: mean of ln sigma in training.
        log_std: standard deviation of ln sigma in training.
    """

    sigma_min: float = 0.002
    sigma_max: float = 80.0
    rho: float = 7.0
    sigma_data: float = 0.5
    log_mean: float = -1.2
    log_std: float = 1.2

    positive: ClassVar[tuple[str, ...]] = ("sigma_min", "sigma_max", "rho", "sigma_data", "log_std")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ends(self.sigma_min, self.sigma_max)

    def build(self) -> Process:
        """The process of this record."""
        from dew.diffusion.process import Process
        from dew.diffusion.schedules import Exploding
        from dew.diffusion.times import LogNormal

        return Process(
            schedule=Exploding(self.sigma_min, self.sigma_max),
            predicts="edm",
            times=LogNormal(self.log_mean, self.log_std),
            weighting="edm",
            sigma_data=self.sigma_data,
            scale_input=True,
            rho=self.rho,
        )


@dataclass(frozen=True, kw_only=True)
class Karras(PresetSpec):
    """EDM's network with training noise spread as the sampling grid spreads it.

    Attributes:
        sigma_min: least noise level.
        sigma_max: greatest noise level.
        rho: exponent of the grid and of the training noise.
        sigma_data: standard deviation of the data.
    """

    sigma_min: float = 0.002
    sigma_max: float = 80.0
    rho: float = 7.0
    sigma_data: float = 0.5

    positive: ClassVar[tuple[str, ...]] = ("sigma_min", "sigma_max", "rho", "sigma_data")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ends(self.sigma_min, self.sigma_max)

    def build(self) -> Process:
        """The process of this record."""
        from dew.diffusion.process import Process
        from dew.diffusion.schedules import Exploding
        from dew.diffusion.times import RhoUniform

        return Process(
            schedule=Exploding(self.sigma_min, self.sigma_max),
            predicts="edm",
            times=RhoUniform(self.sigma_min, self.sigma_max, self.rho),
            weighting="edm",
            sigma_data=self.sigma_data,
            scale_input=True,
            rho=self.rho,
        )


@dataclass(frozen=True, kw_only=True)
class Cosine(PresetSpec):
    """The cosine schedule in continuous time; it ends without signal, so there is no epsilon to predict.

    Attributes:
        offset: keeps some noise near the clean end.
        predicts: what the model predicts.
        weighting: how errors weigh over time.
        gamma: bound of min_snr.
    """

    offset: float = 0.008
    predicts: Literal["v", "x0"] = "v"
    weighting: Literal["uniform", "min_snr"] = "uniform"
    gamma: float = 5.0

    positive: ClassVar[tuple[str, ...]] = ("gamma",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.offset < math.inf:
            raise ValueError(f"preset.offset={self.offset} must be finite and not negative")

    def build(self) -> Process:
        """The process of this record."""
        from dew.diffusion.process import Process
        from dew.diffusion.schedules import CosineAngle
        from dew.diffusion.times import Uniform

        return Process(
            schedule=CosineAngle(self.offset),
            predicts=self.predicts,
            times=Uniform(),
            weighting=self.weighting,
            gamma=self.gamma,
            spacing="time",
        )


@dataclass(frozen=True, kw_only=True)
class Linear(PresetSpec):
    """A table of betas, as DDPM and Stable Diffusion train with.

    Attributes:
        beta_start: first beta.
        beta_end: last beta.
        timesteps: entries of the table.
        betas: evenly spaced betas, or square roots of betas (scaled_linear).
        zero_terminal_snr: rescale the table so that no signal is left at its end.
        predicts: what the model predicts; zero_terminal_snr refuses epsilon.
        weighting: how errors weigh over time.
        gamma: bound of min_snr.
    """

    beta_start: float = 1e-4
    beta_end: float = 0.02
    timesteps: int = 1000
    betas: Literal["linear", "scaled_linear"] = "linear"
    zero_terminal_snr: bool = False
    predicts: Literal["epsilon", "v", "x0"] = "epsilon"
    weighting: Literal["uniform", "min_snr"] = "uniform"
    gamma: float = 5.0

    positive: ClassVar[tuple[str, ...]] = ("beta_start", "gamma")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.beta_start <= self.beta_end < 1:
            raise ValueError(
                f"preset.beta_end={self.beta_end} must be at least beta_start={self.beta_start} and below 1"
            )
        if self.timesteps < 2:
            raise ValueError(f"preset.timesteps={self.timesteps} must be at least 2")
        if self.zero_terminal_snr and self.predicts == "epsilon":
            raise ValueError(
                "preset.predicts='epsilon' says nothing about x0 where preset.zero_terminal_snr leaves no "
                "signal; use v or x0"
            )

    def build(self) -> Process:
        """The process of this record."""
        from dew.diffusion.process import Process
        from dew.diffusion.schedules import BetaTable
        from dew.diffusion.times import UniformIndex

        table = BetaTable(self.beta_start, self.beta_end, self.timesteps, self.betas, self.zero_terminal_snr)
        return Process(
            schedule=table,
            predicts=self.predicts,
            times=UniformIndex(self.timesteps),
            weighting=self.weighting,
            gamma=self.gamma,
            spacing="time" if self.zero_terminal_snr else "karras",
        )


@dataclass(frozen=True, kw_only=True)
class Flow(PresetSpec):
    """Rectified flow: a straight line from the data to the noise.

    Attributes:
        shift: moves sampling and training times towards the noise; 1 leaves them.
        predicts: what the model predicts.
        times: law of the training times before the shift.
        logit_mean: mean of logit t under logit_normal.
        logit_std: standard deviation of logit t under logit_normal.
    """

    shift: float = 1.0
    predicts: Literal["velocity", "v", "x0"] = "velocity"
    times: Literal["logit_normal", "uniform"] = "logit_normal"
    logit_mean: float = 0.0
    logit_std: float = 1.0

    positive: ClassVar[tuple[str, ...]] = ("shift", "logit_std")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("preset.times", self.times, ("logit_normal", "uniform"))

    def build(self) -> Process:
        """The process of this record."""
        from dew.diffusion.process import Process
        from dew.diffusion.schedules import StraightLine
        from dew.diffusion.times import LogitNormal, Uniform

        law = Uniform(self.shift)
        if self.times == "logit_normal":
            law = LogitNormal(self.logit_mean, self.logit_std, self.shift)
        return Process(schedule=StraightLine(self.shift), predicts=self.predicts, times=law, spacing="time")


def check_ends(sigma_min: float, sigma_max: float) -> None:
    """Refuse noise levels that do not grow.

    Raises:
        ValueError: `sigma_min` is not below `sigma_max`.
    """
    if sigma_min >= sigma_max:
        raise ValueError(f"preset.sigma_min={sigma_min} must be below preset.sigma_max={sigma_max}")
