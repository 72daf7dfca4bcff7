"""What a family's task asks for on the command line of `dew generate`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

if TYPE_CHECKING:
    from dew.config import RunConfig


class Options(Protocol):
    """The options of one family: a frozen dataclass, the `config` of its task component.

    Its module imports nothing numerical, and the `Attributes:` of its docstring are the help texts. A nested
    dataclass adds its fields under their own names. The names seed, step and ema are the command's own.

    A family that reads published models names the options in its reader's component too; they then define
    `of_source(folder)`, the options as the files of that model have them.

    It may also define `repeated`, the names of fields whose option is given once for each value, and
    `check(config)`, which refuses by `ValueError` or `OSError` what cannot work for the run of that
    configuration, before its model is read. For a published model `config` is a `PublishedModel`.
    """

    positional: ClassVar[tuple[str, ...]]
    """The fields that are given by place, in this order behind the run."""

    @classmethod
    def of_run(cls, config: RunConfig) -> Self:
        """The options as the run with this configuration has them by itself.

        A field without a default must come from the command line; whatever stands in it here is not read.
        """
        ...

    def respond(self, task: Any, *, seed: int) -> Iterator[str]:
        """Do what was asked with the run's `task`, and yield what is printed."""
        ...
