"""Lazy exports for the package levels that several distributions share (PEP 562)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping

#: name -> "module:distribution". The name is an attribute of the module or the module itself.
Exports = Mapping[str, str]


def lazy(package: str, exports: Exports) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of `package` that import `exports` on first use.

    A name whose module is not installed raises `ImportError` naming the distribution that ships it. An import
    error raised inside an installed module is left as it is: it is a fault there, not a missing package.
    """

    def __getattr__(name: str) -> object:
        try:
            module, distribution = exports[name].split(":")
        except KeyError:
            raise AttributeError(f"module {package!r} has no attribute {name!r}") from None
        try:
            loaded = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is not None and (module == error.name or module.startswith(error.name + ".")):
                raise ImportError(
                    f"{package}.{name} ships in {distribution}: pip install {distribution}", name=module
                ) from error
            raise
        return loaded if module == f"{package}.{name}" else getattr(loaded, name)

    def __dir__() -> list[str]:
        return sorted(exports)

    return __getattr__, __dir__
