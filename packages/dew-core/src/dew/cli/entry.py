"""The program `dew`: find the command and hand it the rest of the line."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from dew.cli import errors
from dew.cli.pages import overview, version
from dew.cli.suggest import unknown
from dew.cli.train import main as train


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status.

    Args:
        argv: the words after `dew`; None reads `sys.argv`.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        status = dispatch(words)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        return silenced()
    except KeyboardInterrupt as stop:
        print(": ".join(filter(None, ["dew: interrupted", str(stop)])), file=sys.stderr)
        return errors.INTERRUPTED
    except SystemExit as stop:
        return (
            stop.code
            if isinstance(stop.code, int)
            else errors.SUCCESS
            if stop.code is None
            else errors.FAILURE
        )
    except Exception as error:
        return errors.report(error)


def dispatch(words: list[str]) -> int:
    """Find the command that `words` begin with and run it."""
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview())
        return errors.SUCCESS if words else errors.MISTAKE
    if words[0] in ("-V", "--version"):
        print(version())
        return errors.SUCCESS
    name, rest = words[0], words[1:]
    if name == "train":
        return train(rest)
    from dew.registry import commands

    if name not in commands:
        raise errors.UserError(
            unknown("command", name, ["train", *commands.names()], "dew --help lists them")
        )
    module, _, attribute = commands.component(name).ref.partition(":")
    return int(getattr(importlib.import_module(module), attribute)(rest))


def silenced() -> int:
    """The reader of our output has left (`dew ... | head`) with what it wanted, which is no failure."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return errors.SUCCESS
