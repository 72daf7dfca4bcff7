"""The model of a run: an architecture's registered name, its fields and the run's precision settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from dew.config.arguments import JsonDict, json_object
from dew.config.record import from_fields
from dew.nn.attention.config import AttentionImpl
from dew.registry import DtypeName, models
from dew.registry.build import FieldError

type MatmulPrecision = Literal["default", "high", "highest"]
"""What every matrix product asks of XLA: its fastest algorithm, or more mantissa bits for less throughput."""


@dataclass(frozen=True)
class ModelConfig:
    """Which model, and in which precision.

    Attributes:
        architecture: registered name of the model.
        config: all the fields it is built from: a value replaces the whole of another one, and what it leaves
            out is the architecture's own default.
        dtype: type it computes in.
        param_dtype: type its parameters are stored in; None leaves the model's own, float32.
        matmul_precision: precision of its matrix products; None leaves the model's own.
        attention_impl: attention kernel; `auto` picks one for the backend and shapes, None is `reference`.

    The last four are passed to models that declare such a field (`precision` for `matmul_precision`) and are
    left out for the others. A value in `config` wins over them.
    """

    architecture: str = "simple_dit"
    config: JsonDict = field(default_factory=dict)
    dtype: DtypeName = "bfloat16"
    param_dtype: DtypeName | None = None
    matmul_precision: MatmulPrecision | None = None
    attention_impl: AttentionImpl | None = "auto"

    def __post_init__(self) -> None:
        object.__setattr__(self, "config", json_object(self.config))

    def _settings(self) -> dict[str, object]:
        import inspect

        declared = inspect.signature(models.get(self.architecture)).parameters
        settings: dict[str, object] = {"dtype": self.dtype, "attention_impl": self.attention_impl}
        if self.param_dtype is not None:
            settings["param_dtype"] = self.param_dtype
        if self.matmul_precision is not None:
            settings["precision"] = self.matmul_precision
        return {name: value for name, value in settings.items() if name in declared}

    def fields(self) -> Mapping[str, object]:
        """What the model is built from: the precision settings it declares, overridden by `config`."""
        return {**self._settings(), **self.config}

    def precision_settings(self) -> frozenset[str]:
        """The names in `fields()` that `config` does not carry."""
        return frozenset(self._settings()) - frozenset(self.config)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Self:
        """The model a record describes.

        Raises:
            ValueError: an unknown or a missing field.
        """
        return from_fields(cls, values, "model")

    def build(self) -> Any:
        """Construct the model.

        Raises:
            UnknownComponent: no installed package registers the architecture.
            TypeError: a field it does not take, or that is of another kind.
            ValueError: float64 where JAX computes in float32 instead, or fields that do not fit each other.
        """
        self._require_wide()
        fields = self.fields()
        factory = models.get(self.architecture)
        try:
            return models.build(self.architecture, **fields)
        except FieldError as error:
            # A value of another kind, by the name that the user gave it.
            told = str(error).replace(f"model {self.architecture!r}: ", "model.config.", 1)
            raise FieldError(told) from error
        except ValueError as error:
            raise ValueError(f"{error}{self._of_defaults(str(error), factory, fields)}") from error

    def _of_defaults(self, message: str, factory: Any, fields: Mapping[str, object]) -> str:
        """What to add to a message that names fields which `config` leaves out."""
        import inspect
        import re

        named = re.findall(r"([a-z_]+)=", message)
        own = sorted({name for name in named if name in inspect.signature(factory).parameters} - {*fields})
        if not own:
            return ""
        return (
            f" ({', '.join(own)}: left out of model.config, which holds all of the model's fields and is not "
            f"laid over another one, so {self.architecture}'s own default)"
        )

    def _require_wide(self) -> None:
        wide = [name for name in ("dtype", "param_dtype") if getattr(self, name) == "float64"]
        if not wide:
            return
        import jax

        if not jax.config.read("jax_enable_x64"):
            raise ValueError(
                f"model.{wide[0]}='float64': JAX would compute in float32 here; set JAX_ENABLE_X64=1, "
                "or use float32"
            )
