"""What every installed plugin keeps."""

from __future__ import annotations

import subprocess
import sys
from abc import ABC, abstractmethod

from dew.plugins.loader import installed
from dew.registry.registry import resolve

HEAVY = ("jax", "numpy", "tyro")


class PluginContract(ABC):
    """Implement `name`; that the plugin loads, lightly, and that its references exist is then tested."""

    @abstractmethod
    def name(self) -> str:
        """The entry point's name of the plugin under test, which must be installed."""

    def test_it_loads_and_nothing_of_it_is_left_out(self) -> None:
        problems = [str(problem) for problem in installed().problems if problem.plugin == self.name()]
        assert problems == []
        assert self.name() in [plugin.name for plugin in installed().plugins], "it is not installed"

    def test_every_reference_can_be_imported(self) -> None:
        for plugin in installed().plugins:
            for part in plugin.components if plugin.name == self.name() else ():
                for reference in filter(None, (part.ref, part.config)):
                    assert resolve(reference) is not None

    def test_every_component_says_what_it_is(self) -> None:
        for plugin in installed().plugins:
            for part in plugin.components if plugin.name == self.name() else ():
                assert part.summary.strip() and "\n" not in part.summary, part

    def test_importing_its_module_brings_no_numerics(self) -> None:
        module = next(plugin.module.__name__ for plugin in installed().plugins if plugin.name == self.name())
        probe = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
        result = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
        assert result.stdout.strip() == "[]", f"{module} imports {result.stdout}{result.stderr}"
