"""`dew train RECIPE`: from the words of the command line to the recipe's function."""

from __future__ import annotations

import os

from dew.cli.errors import MISTAKE, SUCCESS, UserError, has_trained, message
from dew.cli.pages import train_page
from dew.cli.suggest import unknown


def main(argv: list[str]) -> int:
    """Run `dew train` and return its exit status. It imports tyro and the recipe's configuration alone."""
    if not argv or argv[0] in ("-h", "--help"):
        print(train_page())
        return SUCCESS if argv else MISTAKE
    name, words = argv[0], argv[1:]
    from dew.registry import recipes

    if name.startswith("-"):
        raise UserError(
            f"the recipe comes before its options: dew train RECIPE {name} ...; dew train --help lists them"
        )
    if name not in recipes:
        raise UserError(unknown("recipe", name, recipes.names(), "dew train --help lists them"))
    from dew.cli.arguments import parse, taken

    config = parse(name, recipes.config(name), words)
    try:
        recipes.get(name)(config)
    except FileNotFoundError as error:
        elsewhere = started_elsewhere(taken(words)[0])
        if elsewhere is None or has_trained(error):
            raise
        raise UserError(
            f"{message(error)}; the run was started in {elsewhere}, and its relative paths are read from the "
            "working directory: resume there"
        ) from error
    return SUCCESS


def started_elsewhere(run: str | None) -> str | None:
    """The working directory that the run in folder `run` was last started in, where it is another one."""
    if run is None:
        return None
    from dew.telemetry.history import read_journal

    try:
        directory = read_journal(run).environment.get("directory")
    except FileNotFoundError:
        return None
    return directory if isinstance(directory, str) and directory != os.getcwd() else None
