"""One contract over every registered component of a kind, for Dew's own and for a plugin's."""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dew.plugins.component import Component
from dew.plugins.loader import installed
from dew.testing.devices import result_on_devices
from dew.testing.examples import Example
from dew.testing.trials import check_compiled, check_finite

KINDS = ("objective", "model", "schedule", "sampler", "preset", "metric", "dataset", "recipe")
"""The kinds that need an example."""

type Key = tuple[str, str]
"""Kind and name."""


def registered(*plugins: str) -> tuple[Component, ...]:
    """The components of these kinds that the named plugins bring; of every plugin where none is named."""
    parts = [
        part
        for plugin in installed().plugins
        if not plugins or plugin.name in plugins
        for part in plugin.components
        if part.kind in KINDS
    ]
    return tuple(sorted(parts, key=lambda part: (part.kind, part.name)))


class ComponentContract(ABC):
    """Implement `components` and `examples`; pytest then runs every check on every component.

        class TestComponents(ComponentContract):
            def components(self):
                return registered("mine")

            def examples(self):
                return {("model", "tiny"): ModelExample(inputs=lambda rows: {"x": numpy.ones((rows, 3))})}

    A component without an example fails by its name. The checks on eight devices run in one process of their
    own, which imports the test's file again; what the examples need stands in that file or is importable.
    """

    @abstractmethod
    def components(self) -> Iterable[Component]:
        """The components under test."""

    @abstractmethod
    def examples(self) -> Mapping[Key, Example]:
        """Kind and name to a small use."""

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Run each test once a component: those without an example fail `test_it_has_an_example` alone."""
        examples = self.examples()
        keys = [(part.kind, part.name) for part in self.components()]
        chosen = {
            "component": keys,
            "example": [key for key in keys if key in examples],
            "trial": [key for key in keys if key in examples and has_trial(examples[key])],
        }
        for argument in sorted(chosen.keys() & set(metafunc.fixturenames)):
            names = ["-".join(key) for key in chosen[argument]]
            metafunc.parametrize(argument, chosen[argument], ids=names)

    def test_it_has_an_example(self, component: Key) -> None:
        kind, name = component
        assert component in self.examples(), f"{kind} {name!r} has no example: declare one in examples()"

    def test_it_builds_and_comes_back_from_its_record(self, example: Key, tmp_path: Path) -> None:
        self.examples()[example].check_record(*example, tmp_path)

    def test_it_keeps_the_laws_of_its_kind(self, example: Key, tmp_path: Path) -> None:
        self.examples()[example].check_laws(*example, tmp_path)

    def test_its_arrays_are_sound(self, trial: Key) -> None:
        """Shapes and dtypes as foretold, finite values and gradients, one compilation."""
        tried, again = (self.examples()[trial].trial(*trial) for _ in range(2))
        assert tried is not None and again is not None
        check_compiled(tried, again)
        check_finite(tried)

    def test_split_over_devices_it_equals_the_whole(self, trial: Key) -> None:
        results = sharded_results(inspect.getfile(type(self)), type(self).__qualname__)
        fault = results.get("-".join(trial), "it was not run")
        assert fault == "", fault


def has_trial(example: Example) -> bool:
    """Whether an example is a function of arrays, seen by its class, so that collecting builds nothing."""
    return type(example).trial is not Example.trial


@functools.cache
def sharded_results(file: str, name: str) -> Mapping[str, str]:
    """Kind and name of each trial to what went wrong with it on eight devices, or nothing.

    Raises:
        AssertionError: the process died.
    """
    return result_on_devices("-m", "dew.testing.sharded", file, name)
