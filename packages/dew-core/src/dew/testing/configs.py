"""What every run configuration keeps."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping

from dew.config import RunConfig

HEAVY = ("jax", "numpy", "tyro")


class ConfigContract(ABC):
    """Implement `config`; its record, its validation and its import cost are then tested."""

    @abstractmethod
    def config(self) -> RunConfig:
        """A configuration of the class under test, with values that differ from the defaults."""

    def test_record_round_trips(self) -> None:
        config = self.config()
        again = type(config).from_dict(config.to_dict())
        assert again == config and type(again) is type(config)

    def test_saved_run_reads_back(self) -> None:
        config = self.config()
        with tempfile.TemporaryDirectory() as directory:
            config.save(directory)
            assert type(config).load(directory) == config

    def test_unknown_and_missing_fields_are_refused_by_name(self) -> None:
        record = self.config().to_dict()
        name = next(iter(record))
        for changed, named in (
            ({**record, "no_such_field": 1}, "no_such_field"),
            (without(record, name), name),
        ):
            try:
                type(self.config()).from_dict(changed)
            except ValueError as error:
                assert named in str(error), error
            else:
                raise AssertionError(f"a record with a wrong {named!r} was read")

    def test_starting_point_is_an_instance_that_can_be_saved(self) -> None:
        start = type(self.config()).starting_point()
        assert type(start) is type(self.config())
        assert start.objective is not None, "a run is found again by its objective's name; set `objective`"

    def test_importing_the_configuration_brings_no_numerics(self) -> None:
        module = type(self.config()).__module__
        probe = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
        command = [sys.executable, "-c", probe]
        paths = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        result = subprocess.run(command, capture_output=True, text=True, env=paths, check=False)
        assert result.stdout.strip() == "[]", f"{module} imports {result.stdout}{result.stderr}"


def without(record: Mapping[str, object], name: str) -> dict[str, object]:
    """`record` less one field."""
    return {key: value for key, value in record.items() if key != name}
