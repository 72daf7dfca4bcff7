"""A configuration from the words of a command line, from a recipe's starting point or a recorded run.

tyro reads field types at run time, so the configuration's modules import no jax and neither does this one.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from dew.cli.errors import UserError
from dew.cli.pages import of_kind, table
from dew.cli.slots import NONE, Slot, choose, fields_of, slots, spelled
from dew.config.arguments import JsonArgument, constructor

RESUME = "--resume"
LENGTHS = ("steps", "epochs")
"""Fields of the trainer of which one is set; giving one on the command line unsets the other."""


def parse(name: str, cls: type[Any], words: list[str]) -> Any:
    """The configuration that `dew train NAME WORDS` asks for, an instance of `cls`.

    Args:
        name: the recipe.
        cls: its `RunConfig` subclass.
        words: options and choices; `--resume RUN` starts from that run's record instead of the recipe's own
            starting point.

    Raises:
        UserError: a choice or a run that does not exist.
        SystemExit: tyro printed help (0) or refused an option (2).
    """
    run, words = taken(words)
    start = with_one_length(cls.starting_point() if run is None else recorded(cls, run), words)
    found = list(slots(cls, start))
    chosen, rest = choose(found, words)
    narrow_cls, narrow_start = narrowed(cls, start, chosen)
    import tyro

    parsed = tyro.cli(
        narrow_cls,
        default=narrow_start,
        args=rest,
        prog=f"dew train {name}",
        description=description(name, cls, found),
    )
    config = widened(cls, parsed, chosen)
    if run is not None:
        refuse_moving(run, start.trainer, config.trainer)
    return config


def refuse_moving(run: str, recorded: Any, asked: Any) -> None:
    """Refuse a name or folder beside `--resume`: they would start another run in silence.

    Raises:
        UserError: the option, and what to leave out.
    """
    for field in ("name", "checkpoint_dir"):
        if getattr(asked, field) != getattr(recorded, field):
            raise UserError(
                f"{RESUME} {run} goes on with that run, and --trainer.{spelled(field)} "
                f"{getattr(asked, field)} names another place; leave one of them out"
            )


def taken(words: list[str]) -> tuple[str | None, list[str]]:
    """The value of `--resume`, and the words without it."""
    for index, word in enumerate(words):
        if word.startswith(f"{RESUME}="):
            return word.partition("=")[2], words[:index] + words[index + 1 :]
        if word == RESUME:
            if index + 1 == len(words):
                raise UserError(f"{RESUME} needs the folder of a run, as in {RESUME} checkpoints/NAME")
            return words[index + 1], words[:index] + words[index + 2 :]
    return None, words


def recorded(cls: type[Any], run: str) -> Any:
    """The configuration a run was trained with, pointed at that run."""
    directory = Path(run)
    if not (directory / "run.json").is_file():
        raise UserError(
            f"{RESUME} {run}: no run.json is there; give the folder of a run (dew list shows them)"
        )
    refuse_other_kind(cls, directory)
    config = cls.load(run)
    place = directory.absolute()
    trainer = dataclasses.replace(config.trainer, name=place.name, checkpoint_dir=str(place.parent))
    return dataclasses.replace(config, trainer=trainer)


def refuse_other_kind(cls: type[Any], directory: Path) -> None:
    """Refuse to go on with a run whose objective another recipe trains.

    Raises:
        UserError: both, and the command that goes on with this run.
    """
    from dew.config.files import read_record
    from dew.registry import name_of, objectives

    objective = read_record(str(directory)).get("objective")
    if not isinstance(objective, str) or objective not in objectives:
        return
    trained = objectives.config(objective)
    if issubclass(trained, cls):
        return
    try:
        way = f"go on with dew train {name_of('recipe', trained)} {RESUME} {directory}"
    except ValueError:
        way = "go on with what trained it"
    raise UserError(
        f"{RESUME} {directory} is a run of objective {objective!r}, which this recipe does not train; {way}"
    )


def with_one_length(start: Any, words: list[str]) -> Any:
    """`start` without its own length where the words set the other one."""
    given = {
        length for length in LENGTHS if any(word.partition("=")[0] == f"--trainer.{length}" for word in words)
    }
    if len(given) != 1:
        return start
    unset = {length: None for length in LENGTHS if length not in given}
    return dataclasses.replace(start, trainer=dataclasses.replace(start.trainer, **unset))


def narrowed(
    cls: type[Any], start: Any, chosen: Mapping[str, type | None], prefix: str = ""
) -> tuple[type, Any]:
    """A subclass of `cls` whose slots hold exactly the chosen records, and its defaults as an instance.

    The instance is made without the constructor: a required field has no value yet and is marked as missing.
    """
    import tyro

    annotations: dict[str, Any] = {}
    namespace: dict[str, Any] = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
    }
    values: dict[str, Any] = {}
    for field, hint, value in fields_of(cls, start):
        path = f"{prefix}{field.name}"
        record = chosen.get(path, type(value) if dataclasses.is_dataclass(value) else None)
        if record is not None:
            instance = value if type(value) is record else blank(record)
            annotations[field.name], values[field.name] = narrowed(record, instance, chosen, f"{path}.")
        elif path in chosen:
            annotations[field.name], values[field.name] = Annotated[None, tyro.conf.Suppress], None
        else:
            annotations[field.name], values[field.name] = readable(hint), value
        namespace[field.name] = dataclasses.field(default=tyro.MISSING, kw_only=True, metadata=field.metadata)
    frozen = cls.__dataclass_params__.frozen
    subclass = type(cls.__name__, (cls,), {**namespace, "__annotations__": annotations})
    subclass = dataclasses.dataclass(frozen=frozen, kw_only=True)(subclass)
    return subclass, filled(subclass, values)


def blank(record: type[Any]) -> Any:
    """An instance of `record` with its defaults, and tyro's mark where a field has none."""
    import tyro

    values: dict[str, Any] = {}
    for field in dataclasses.fields(record):
        if field.default_factory is not dataclasses.MISSING:
            values[field.name] = field.default_factory()
        else:
            values[field.name] = tyro.MISSING if field.default is dataclasses.MISSING else field.default
    return filled(record, values)


def filled(cls: type[Any], values: Mapping[str, Any]) -> Any:
    """An instance with these attributes; validation waits for the parsed values."""
    instance = object.__new__(cls)
    for name, value in values.items():
        object.__setattr__(instance, name, value)
    return instance


def readable(hint: Any) -> Any:
    """`hint` with a configuration's own marker turned into what tyro reads.

    The marker says all that tyro needs: the type itself may be recursive, as JSON is, which tyro cannot walk.
    """
    if typing.get_origin(hint) is not Annotated:
        return hint
    for extra in typing.get_args(hint)[1:]:
        if isinstance(extra, JsonArgument):
            return Annotated[Any, constructor(extra)]
    return hint


def widened(cls: type[Any], parsed: Any, chosen: Mapping[str, type | None], prefix: str = "") -> Any:
    """`parsed` as the class the narrow one was made from, nested records too."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        value = getattr(parsed, field.name)
        path = f"{prefix}{field.name}"
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            record = chosen.get(path) or type(value).__mro__[1]
            value = widened(record, value, chosen, f"{path}.")
        values[field.name] = value
    return cls(**values)


def description(name: str, cls: type[Any], found: list[Slot]) -> str:
    """What stands above the options: the recipe, `--resume`, and the choices with their summaries."""
    text = inspect.cleandoc(cls.__doc__ or f"Train {name}.").partition("\n\n")[0]
    rows = [(f"{RESUME} RUN", "Go on with the run in this folder; options given here come on top.")]
    for slot in found:
        shown = sorted(choice for choice in slot.arms if choice != NONE or slot.default is not None)
        rows += [(f"{spelled(slot.path)}:{choice}", slot.summaries[choice]) for choice in shown]
    rows += [(f"--model.architecture {part.name}", part.summary) for part in of_kind("model")]
    heading = "choices, before or after the options they bring (CHOICE --help shows those):"
    return f"{text}\n\n{heading}\n{table(rows)}"
