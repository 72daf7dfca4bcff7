"""`dew generate`: put a trained run to work. The words are read before anything numerical loads, with the
options that the run's family registers beside its task.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from dew.cli.arguments import filled
from dew.cli.errors import MISTAKE, SUCCESS, UserError
from dew.cli.pages import of_kind, table
from dew.cli.slots import fields_of
from dew.inference.tasks.opening import pipeline, recorded_objective, task_component
from dew.inference.tasks.options import Options
from dew.inference.tasks.published import is_published, published_model, published_options
from dew.registry import objectives, tasks

HELP = ("-h", "--help")


@dataclass(frozen=True)
class Request[Asked]:
    """Put a trained run to work.

    Attributes:
        options: What the run's family asks for.
        seed: Of the draws.
        step: Checkpoint; unset takes the newest.
        ema: Use the averaged weights where the run keeps an average.
    """

    options: Annotated[Asked, tyro.conf.arg(name="")]
    seed: int = 0
    step: int | None = None
    ema: bool = True


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit status."""
    words = list(argv)
    run = run_among(words)
    if run is None:
        return without_run(words)
    request = parse(run, words)
    keep_compiled_programs()
    task = pipeline(run, step=request.step, ema=request.ema)
    for piece in request.options.respond(task, seed=request.seed):
        sys.stdout.write(printable(piece))
        sys.stdout.flush()
    return SUCCESS


def run_among(words: Iterable[str]) -> str | None:
    """The first word that is the folder of a run or of a published model."""
    held = (word for word in words if os.path.isfile(os.path.join(word, "run.json")) or is_published(word))
    return next(held, None)


def without_run(words: list[str]) -> int:
    """Show the families, or say what is wrong with the word in the run's place."""
    if not words or words[0] in HELP:
        print(families_page())
        return SUCCESS if words else MISTAKE
    if not words[0].startswith("-"):
        recorded_objective(words[0])
    raise UserError(
        "no word here is the folder of a run, which holds run.json, or of a published model, which holds "
        "config.json: dew generate RUN ...; dew list shows the runs of a folder"
    )


def families_page() -> str:
    """The page of `dew generate --help`, before a run says whose options there are."""
    rows = [(part.name, part.summary) for part in of_kind("task") if part.config]
    return (
        "usage: dew generate RUN [options]\n\n"
        "RUN is the folder of a run, or of a published language model in Hugging Face's layout.\n"
        f"What a run does depends on the objective it trained:\n{table(rows) or '  none is installed'}\n\n"
        "dew generate RUN --help shows the options of that run with its own defaults."
    )


def parse(run: str, words: list[str]) -> Request[Options]:
    """The request that `words`, `run` among them, make with the options of the family that trained it.

    What the options can find wrong by themselves is refused here, before a model is read.
    """
    options, start, config = starting(run)
    asked, start = by_place(options, start)
    default: Request[Any] = Request(options=start)
    place = words.index(run)
    request: Request[Any] = tyro.cli(
        Request[asked],
        args=words[:place] + words[place + 1 :],
        default=default,
        prog=f"dew generate {shlex.quote(run)}",
        description=(options.__doc__ or "").partition("\n\n")[0],
        config=(tyro.conf.OmitArgPrefixes,),
    )
    check = getattr(request.options, "check", None)
    if check is not None:
        check(config)
    return request


def starting(run: str) -> tuple[type[Any], Any, Any]:
    """The options of the family of `run`, their values for it, and its configuration.

    Raises:
        UserError: the family has no command line.
    """
    if is_published(run):
        options, model = published_options(run), published_model(run)
        return options, options.of_source(run), model
    name = recorded_objective(run)
    if not task_component(run).config:
        raise UserError(
            f"{run} trained objective={name!r}, whose task has no command line; open it with dew.pipeline"
        )
    options = tasks.config(name)
    config = objectives.config(name).load(run).opened(run)
    return options, options.of_run(config), config


def by_place(options: type[Any], start: Any) -> tuple[type[Any], Any]:
    """A subclass of `options` that says which fields are given by place, and `start` as an instance of it.

    The instance marks the fields without a default as missing, so it is made without the constructor.
    """
    annotations: dict[str, Any] = {}
    namespace: dict[str, Any] = {"__module__": options.__module__, "__doc__": options.__doc__}
    values: dict[str, Any] = {}
    for field, hint, value in fields_of(options, start):
        required = dataclasses.MISSING is field.default is field.default_factory
        values[field.name] = tyro.MISSING if required else value
        shown = field.name.upper() if required else f"[{field.name.upper()} ...]"
        placed = Annotated[hint, tyro.conf.Positional, tyro.conf.arg(metavar=shown)]
        again = Annotated[hint, tyro.conf.UseAppendAction]
        other = again if field.name in getattr(options, "repeated", ()) else hint
        annotations[field.name] = placed if field.name in options.positional else other
        namespace[field.name] = dataclasses.field(default=tyro.MISSING, kw_only=True)
    subclass = type(options.__name__, (options,), {**namespace, "__annotations__": annotations})
    subclass = dataclasses.dataclass(frozen=True, kw_only=True)(subclass)
    return subclass, filled(subclass, values)


def printable(text: str) -> str:
    """`text` with what the output's encoding lacks replaced."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, errors="replace").decode(encoding)


def keep_compiled_programs() -> None:
    """Reuse the programs that an earlier call compiled."""
    from dew.config.cache import default_compilation_cache_dir
    from dew.training.runtime import use_compilation_cache

    use_compilation_cache(default_compilation_cache_dir())
