"""The optimizer of a run."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from dew.config.arguments import JsonDict, json_list_argument, json_object
from dew.config.record import decode
from dew.training.optim.config import ParamGroup, ScheduleSpec

type OptimizerName = Literal["adam", "adamw", "lamb", "muon", "muonclip"]

ADAM = {"b1": float, "b2": float, "eps": float, "eps_root": float}
MUON: Mapping[str, Any] = {
    "beta": float,
    "nesterov": bool,
    "ns_steps": int,
    "ns_coeffs": tuple[float, float, float],
    "consistent_rms": float | None,
    "adam_paths": tuple[str, ...],
    "stacks": tuple[str, ...],
    **ADAM,
}
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "adam": {**ADAM, "nesterov": bool},
    "adamw": {**ADAM, "nesterov": bool},
    "lamb": ADAM,
    "muon": MUON,
    "muonclip": {"tau": float, **MUON},
}
"""What `optimizer_opts` may hold for each optimizer, and of which type."""


@dataclass(frozen=True)
class OptimConfig:
    """Optimizer, learning rate, weight decay and clipping.

    Attributes:
        optimizer: which update rule. muonclip is muon with QK-Clip, for language models.
        optimizer_opts: its own options, as `{"b2": 0.95}`; `OPTIONS` lists them.
        learning_rate: the constant rate; under a schedule, the rate it peaks at.
        schedule: how the rate changes over the run's updates.
        weight_decay: decoupled decay, multiplied by the rate; None is the optimizer's own, 1e-4 for adamw
            and 0 for the others. adam takes none.
        param_groups: rates and decays of parts of the tree; the first match wins.
        clip_grads: largest global norm of the gradient; 0 does not clip.
        state_dtype: type of Adam's moments in memory; bfloat16 rounds both stochastically (adam and adamw).

    Raises:
        ValueError: an option the optimizer lacks, a negative number, or a combination it does not have.
    """

    optimizer: OptimizerName = "adamw"
    optimizer_opts: JsonDict = field(default_factory=dict)
    learning_rate: float = 0.00027
    schedule: ScheduleSpec | None = None
    weight_decay: float | None = None
    param_groups: Annotated[tuple[ParamGroup, ...], json_list_argument(ParamGroup)] = ()
    clip_grads: float = 0.0
    state_dtype: Literal["float32", "bfloat16"] = "float32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "optimizer_opts", json_object(self.optimizer_opts))
        self._check_options()
        for name in ("learning_rate", "clip_grads", "weight_decay"):
            value: float | None = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise ValueError(f"optim.{name}={value} must be 0 or more and finite")
        decays = [self.weight_decay, *(group.weight_decay for group in self.param_groups)]
        if self.optimizer == "adam" and any(decays):
            raise ValueError(
                f"optim.weight_decay={next(filter(None, decays))} needs adamw; adam decays nothing"
            )
        if self.state_dtype == "bfloat16" and self.optimizer not in ("adam", "adamw"):
            raise ValueError(
                f"optim.state_dtype='bfloat16' works with adam and adamw, not {self.optimizer}; use 'float32'"
            )

    def _check_options(self) -> None:
        if self.optimizer not in OPTIONS:
            raise ValueError(f"optim.optimizer={self.optimizer!r} must be one of {', '.join(OPTIONS)}")
        accepted = OPTIONS[self.optimizer]
        for name, value in self.optimizer_opts.items():
            path = f"optim.optimizer_opts.{name}"
            if name not in accepted:
                close = difflib.get_close_matches(name, accepted, n=1)
                fix = f"did you mean {close[0]}?" if close else f"it takes {', '.join(accepted)}"
                raise ValueError(f"{path}: {self.optimizer} has no such option; {fix}")
            decode(accepted[name], value, path)
        tau: Any = self.optimizer_opts.get("tau", 1.0)
        if not 0 < tau < float("inf"):
            raise ValueError(f"optim.optimizer_opts.tau={tau} must be above 0 and finite; the paper's is 100")
