"""`dew sweep`: trials of a recipe over a space of its fields."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dew.cli.errors import FAILURE, MISTAKE, SUCCESS, UserError
from dew.cli.suggest import unknown

if TYPE_CHECKING:
    from dew.config.sweep import Sweep

EXAMPLES = """a space:
  --space optim.learning_rate=1e-4,3e-4,1e-3    these values (or a JSON list)
  --space optim.learning_rate=1e-4..1e-2:log    a range, drawn by ratio
  --space data.seq_len=64..256                  a range of whole numbers

  dew sweep RECIPE --space optim.learning_rate=1e-3,3e-3 model.config.num_layers=2,4 --trainer.steps 200
"""


def main(argv: list[str]) -> int:
    """Run the command and return its exit status."""
    request, words = parser().parse_known_args(argv)
    if not argv:
        parser().print_help()
        return MISTAKE
    sweep, folder = continued(request, words) if request.resume else begun(request, words)
    from dew.config.sweep.trial import TrialStopped

    try:
        trials = sweep.run(folder)
    except (TrialStopped, KeyboardInterrupt) as stop:
        print(f"Go on with: dew sweep --resume {shlex.quote(str(folder))}")
        return stop.status if isinstance(stop, TrialStopped) else 130
    return told(sweep, trials, folder)


def parser() -> argparse.ArgumentParser:
    """What the command takes; the other words are the recipe's own."""
    made = argparse.ArgumentParser(
        prog="dew sweep",
        usage="dew sweep RECIPE --space FIELD=VALUES ... [options] [the recipe's options]\n"
        "       dew sweep --resume DIR",
        description="Train a recipe at several values of its fields and say which was best. Options of the "
        "recipe (dew train RECIPE --help) hold for every trial. A sweep that was stopped or killed goes on.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("recipe", metavar="RECIPE", nargs="?", help="what is trained")
    made.add_argument(
        "--space",
        metavar="FIELD=VALUES",
        nargs="+",
        action="extend",
        default=[],
        help="a field and its values",
    )
    made.add_argument("--method", metavar="NAME", help="grid (default), random or optuna")
    made.add_argument("--trials", metavar="N", type=int, help="how many, for random and optuna")
    made.add_argument("--seed", metavar="N", type=int, help="of the draws; default 0")
    made.add_argument(
        "--metric", metavar="NAME", help="what is compared; default the first validation metric"
    )
    made.add_argument("--out", metavar="DIR", help="folder of the sweep; default sweeps/RECIPE-TIME")
    made.add_argument("--resume", metavar="DIR", help="go on with the sweep in this folder")
    return made


def begun(request: Any, words: list[str]) -> tuple[Sweep, Path]:
    """A new sweep and its folder.

    Raises:
        UserError: no recipe, one that is not known, or a folder that holds a sweep.
        ValueError: a space that does not fit.
    """
    from dew.registry import recipes

    name = request.recipe
    if name is None:
        raise UserError("dew sweep needs a recipe before its options; dew train --help lists them")
    if name not in recipes:
        raise UserError(unknown("recipe", name, recipes.names(), "dew train --help lists them"))
    from dew.cli.arguments import parse
    from dew.config.sweep import Sweep, parse_dimension
    from dew.config.sweep.driver import is_sweep
    from dew.config.sweep.space import space_of

    space = space_of([parse_dimension(text) for text in request.space])
    cls = recipes.config(name)
    base = parse(name, cls, words)
    for field in ("name", "checkpoint_dir"):
        if getattr(base.trainer, field) != getattr(cls.starting_point().trainer, field):
            raise UserError(f"--trainer.{field}: trials have names and a folder of their own; use --out")
    sweep = Sweep(
        recipe=name,
        base=json.loads(json.dumps(base.to_dict())),
        space=space,
        method=request.method or "grid",
        trials=request.trials,
        seed=request.seed or 0,
        metric=request.metric,
    )
    folder = Path(request.out or f"sweeps/{name}-{time.strftime('%Y%m%d-%H%M%S')}")
    if is_sweep(folder):
        raise UserError(
            f"--out {folder} holds a sweep; go on with dew sweep --resume {folder}, or choose another"
        )
    return sweep, folder


def continued(request: Any, words: list[str]) -> tuple[Sweep, Path]:
    """The recorded sweep and its folder.

    Raises:
        UserError: further words, which would make it another sweep. The metric may be named anew as long as
            no trial has completed.
    """
    from dew.config.sweep import Sweep

    settled = ("space", "method", "trials", "seed", "out")
    given = [f"--{name}" for name in settled if getattr(request, name) not in (None, [])]
    given += [word for word in words if word.startswith("-")]
    if request.recipe and not words:
        given.insert(0, request.recipe)
    if given or words:
        raise UserError(
            f"--resume goes on with the sweep as it is recorded; leave out {' '.join(given or words)}"
        )
    sweep = Sweep.load(request.resume)
    if request.metric is not None:
        sweep = dataclasses.replace(sweep, metric=request.metric)
    return sweep, Path(request.resume)


def told(sweep: Sweep, trials: list[Any], folder: Path) -> int:
    """Print the best trial and how to look at all of them; the exit status is 1 where none completed."""
    from dew.config.sweep.driver import best
    from dew.config.sweep.points import described
    from dew.config.sweep.trial import TRIALS

    place = shlex.quote(str(folder))
    first, failed = best(trials), sum(trial.status == "failed" for trial in trials)
    if first is None:
        print(f"None of the {len(trials)} trials completed; {place}/{TRIALS} holds their logs.")
        return FAILURE
    print(f"best: {first.facts['metric']} {first.value:.6g} with {described(first.point)}")
    if failed:
        print(f"{failed} of {len(trials)} trials failed; the report says why")
    print(f"  dew report {place}\n  {place}/{TRIALS}/{first.name} is the run")
    return SUCCESS
