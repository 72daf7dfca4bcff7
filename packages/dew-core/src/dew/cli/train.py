"""`dew train RECIPE`: from the words of the command line to the recipe's function."""

from __future__ import annotations

from dew.cli.errors import MISTAKE, SUCCESS, UserError
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
    from dew.cli.arguments import parse

    config = parse(name, recipes.config(name), words)
    recipes.get(name)(config)
    return SUCCESS
