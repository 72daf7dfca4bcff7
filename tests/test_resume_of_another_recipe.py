"""`--resume` with a run that another recipe trained."""

from __future__ import annotations

import itertools

import pytest

from dew.cli.arguments import parse
from dew.cli.errors import UserError
from dew.registry import recipes

PAIRS = [
    (mine, other)
    for mine, other in itertools.permutations(sorted(recipes.names()), 2)
    if recipes.config(mine) is not recipes.config(other)
]


@pytest.mark.parametrize(("mine", "other"), PAIRS)
def test_another_recipes_run_is_refused_with_the_command_that_goes_on(mine: str, other: str, tmp_path):
    recipes.config(other).starting_point().save(str(tmp_path / "run"))
    with pytest.raises(UserError, match=f"go on with dew train {other} --resume .*/run"):
        parse(mine, recipes.config(mine), ["--resume", str(tmp_path / "run")])


@pytest.mark.parametrize("name", sorted(recipes.names()))
def test_a_recipes_own_run_goes_on(name: str, tmp_path):
    recipes.config(name).starting_point().save(str(tmp_path / "run"))
    assert parse(name, recipes.config(name), ["--resume", str(tmp_path / "run")]).trainer.name == "run"
