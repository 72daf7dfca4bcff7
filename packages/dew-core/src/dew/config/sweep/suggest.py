"""Which point a trial tries: by grid, at random, or by Optuna from the trials before it."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from dew.config.sweep.ledger import Trial
from dew.config.sweep.space import Choice, Dimension, Point, grid, random_point

type Method = Literal["grid", "random", "optuna"]
METHODS: tuple[Method, ...] = ("grid", "random", "optuna")


def check_method(method: str, trials: int | None, space: Mapping[str, Dimension]) -> int:
    """The number of trials.

    Raises:
        ValueError: an unknown method, a number with the grid, none with another, or a range in a grid.
        ImportError: Optuna is not installed.
    """
    if method not in METHODS:
        raise ValueError(f"method={method!r} must be {', '.join(METHODS)}")
    if method == "grid":
        if trials is not None:
            raise ValueError(f"trials={trials}: method=grid runs every combination; leave trials out")
        return len(grid(space))
    if trials is None or trials < 1:
        raise ValueError(f"trials={trials}: method={method} needs a number of trials of at least 1")
    if method == "optuna" and importlib.util.find_spec("optuna") is None:
        raise ImportError(
            "method=optuna needs Optuna, whose package is missing: pip install 'dew-core[sweep]'",
            name="optuna",
        )
    return trials


def suggested(
    method: str,
    space: Mapping[str, Dimension],
    *,
    seed: int,
    number: int,
    done: Sequence[Trial],
    higher: bool,
) -> Point:
    """The point of trial `number`. It depends on the arguments alone, so a resumed sweep tries the same.

    Args:
        method: one of `METHODS`.
        space: the fields and their values.
        seed: of the draws.
        number: of the trial, from 0.
        done: the trials before it, which Optuna learns from.
        higher: whether the greatest value is the best.
    """
    if method == "grid":
        return grid(space)[number]
    if method == "random":
        return random_point(space, seed, number)
    return optuna_point(space, seed=seed, number=number, done=done, higher=higher)


def optuna_point(
    space: Mapping[str, Dimension], *, seed: int, number: int, done: Sequence[Trial], higher: bool
) -> Point:
    """What Optuna's tree-structured Parzen estimator suggests after `done` (arXiv 2304.11127).

    The study is built anew from the trials and the sampler seeded by the number, so that nothing but the
    ledger has to survive.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    spread = {field: distribution(each) for field, each in space.items()}
    sampler = optuna.samplers.TPESampler(seed=(seed * 1_000_003 + number) % 2**32)
    study = optuna.create_study(sampler=sampler, direction="maximize" if higher else "minimize")
    for trial in done:
        held = {field: spelled(space[field], value) for field, value in trial.point.items()}
        state = optuna.trial.TrialState
        failed = trial.value is None
        study.add_trial(
            optuna.trial.create_trial(
                params=held,
                distributions=spread,
                value=trial.value,
                state=state.FAIL if failed else state.COMPLETE,
            )
        )
    asked = study.ask(spread).params
    return {field: read(space[field], asked[field]) for field in space}


def distribution(dimension: Dimension) -> Any:
    """The dimension as Optuna writes it; a choice by the numbers of its values, which may be of any type."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(dimension, Choice):
        return CategoricalDistribution(list(range(len(dimension.values))))
    if dimension.whole:
        return IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log)
    return FloatDistribution(dimension.low, dimension.high, log=dimension.log)


def spelled(dimension: Dimension, value: Any) -> Any:
    """A value as `distribution` numbers it."""
    return dimension.values.index(value) if isinstance(dimension, Choice) else value


def read(dimension: Dimension, value: Any) -> Any:
    """Undo `spelled`."""
    return dimension.values[value] if isinstance(dimension, Choice) else value
