"""Any objective, trained through quantized products.

`quantized(objective, spec)` is the same objective, whose modules are called with their dense products in a
narrow type wherever the run learns or scores: in `init`, `loss`, `predict` and `evaluate`. The variables are
the same tree of float32 masters; the optimizer moves them, checkpoints hold them, and what is shown or handed
on (previews, tasks, exports) computes with them in full width.

A module takes part through a method `product(x, kernel)`, as `dew.nn.dense.Dense` has it, or
`grouped_product(x, kernels, sizes)`, as a mixture of experts has it; `flax.linen.Dense` takes part too. What
is no such product stays as it is: embeddings, norms, attention's scores, routers, convolutions, and a
vocabulary head, whose product is scored tile by tile or has a side named `vocab`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import jax
from flax import linen as nn
from flax.linen.dtypes import promote_dtype

from dew.objectives.base import Batch, Objective, Step, Variables
from dew.telemetry.cost import StepCost
from dew.training.quantization.config import Quantization
from dew.training.quantization.products import narrow_grouped_product, narrow_product, require_qwix

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dew.training.config import MeshSpec


def quantized[O: Objective[Any, Any]](objective: O, spec: Quantization) -> O:
    """Return `objective` so that it learns through products in a narrow type.

    The result is an instance of the objective's class.

    Raises:
        ImportError: Qwix is not installed.
        ValueError: the objective is quantized already.
    """
    require_qwix()
    kind = type(objective)
    if issubclass(kind, Quantized):
        raise ValueError(f"{kind.__name__} is quantized already; quantize the objective it was made from")
    members: dict[str, Any] = {"quantization": spec, "__module__": kind.__module__}
    twin = copy.copy(objective)
    object.__setattr__(twin, "__class__", type(kind.__name__, (Quantized, kind), members))
    return twin


class Quantized(Objective[Any, Any]):
    """What a quantized objective does around its own class; `quantized` puts it before that class."""

    quantization: Quantization

    def init(self, key: jax.Array, variables: Variables | None = None) -> Variables:
        """The objective's own variables.

        Raises:
            ValueError: the glob names no product of the modules that are initialised.
        """
        with quantized_pass(self.quantization) as record:
            drawn = super().init(key, variables)
        if record.seen:
            record.check()
        return drawn

    def loss(self, params: Variables, batch: Batch, step: Step) -> Any:
        """The objective's loss through quantized products.

        Raises:
            ValueError: the glob names no product of the loss.
        """
        with quantized_pass(self.quantization) as record:
            result = super().loss(params, batch, step)
        record.check()
        return result

    def predict(self, params: Variables, batch: Batch, step: Step, **options: Any) -> Any:
        """The objective's predictions through quantized products."""
        with quantized_pass(self.quantization):
            return super().predict(params, batch, step, **options)

    def evaluate(self, params: Variables, batch: Batch, step: Step) -> Any:
        """The objective's artifacts through quantized products."""
        with quantized_pass(self.quantization):
            return super().evaluate(params, batch, step)

    def check_mesh(self, mesh: MeshSpec) -> None:
        """Refuse a choice of modules over pipeline stages, whose layers have no path of their own.

        Raises:
            ValueError: `modules` other than `*` with stages; and what the objective refuses.
        """
        super().check_mesh(mesh)
        if mesh.stage > 1 and self.quantization.modules != "*":
            raise ValueError(
                f"trainer.quantization.modules={self.quantization.modules!r} names modules by their path, "
                f"and the layers of a stage have none of their own under mesh.stage={mesh.stage}; use "
                "modules='*' or mesh.stage=1"
            )

    def step_cost(self, batch: Batch) -> StepCost | None:
        """The objective's own count, whose products are those of the narrow type for the most part."""
        cost = super().step_cost(batch)
        if cost is None or self.quantization.activations is None:
            return cost
        return replace(
            cost,
            dtype=self.quantization.weights,
            counts=f"{cost.counts}; the backward pass and the products left wide count as narrow ones",
        )


@dataclass
class Pass:
    """What one quantized pass met.

    Attributes:
        spec: types and glob.
        seen: the path of every module with a product.
        narrow: those of them that the glob names.
    """

    spec: Quantization
    seen: set[str] = field(default_factory=set[str])
    narrow: set[str] = field(default_factory=set[str])

    def takes(self, path: tuple[str, ...]) -> bool:
        """Whether the product of the module at `path` is quantized."""
        name = "/".join(path)
        self.seen.add(name)
        if not fnmatchcase(name, self.spec.modules):
            return False
        self.narrow.add(name)
        return True

    def check(self) -> None:
        """Refuse a glob that named nothing.

        Raises:
            ValueError: with the modules that have a product.
        """
        if self.narrow:
            return
        there = ", ".join(sorted(self.seen)[:3]) or "none"
        raise ValueError(
            f"trainer.quantization.modules={self.spec.modules!r} names no dense product of this model; those "
            f"that can be quantized are in {there}" + (", ..." if len(self.seen) > 3 else "")
        )


@contextmanager
def quantized_pass(spec: Quantization) -> Generator[Pass]:
    """Trace what happens inside with the products that `spec` names in a narrow type."""
    record = Pass(spec)
    with nn.intercept_methods(_interceptor(record)):
        yield record


def _interceptor(record: Pass) -> Callable[..., Any]:
    def intercept(next_fun: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
        module: nn.Module = context.module
        take = TAKES.get(context.method_name)
        if take is None or not take(module) or not record.takes(tuple(module.path)):
            return next_fun(*args, **kwargs)
        if module.is_initializing():
            return next_fun(*args, **kwargs)
        return NARROW[context.method_name](module, *args, record.spec, **kwargs)

    return intercept


def _plain(module: Any, x: jax.Array, kernel: jax.Array, spec: Quantization) -> jax.Array:
    return narrow_product(x, kernel, spec)


def _grouped(
    module: Any, x: jax.Array, kernels: jax.Array, sizes: jax.Array, spec: Quantization
) -> jax.Array:
    return narrow_grouped_product(x, kernels, sizes, spec)


def _linen_dense(module: Any, x: jax.Array, spec: Quantization) -> jax.Array:
    kernel, bias = module.get_variable("params", "kernel"), module.get_variable("params", "bias")
    x, kernel, bias = promote_dtype(x, *nn.meta.unbox((kernel, bias)), dtype=module.dtype)
    result = narrow_product(x.reshape(-1, x.shape[-1]), kernel, spec).reshape(*x.shape[:-1], -1)
    return result if bias is None else result + bias


def _has_no_vocabulary(module: Any) -> bool:
    return "vocab" not in getattr(module, "axes", ())


TAKES: Mapping[str, Callable[[Any], bool]] = {
    "product": _has_no_vocabulary,
    "grouped_product": lambda module: True,
    "__call__": lambda module: isinstance(module, nn.Dense),
}
"""Method name -> whether a module's call of it is a product that can be quantized."""

NARROW: Mapping[str, Callable[..., jax.Array]] = {
    "product": _plain,
    "grouped_product": _grouped,
    "__call__": _linen_dense,
}
"""Method name -> the same in a narrow type, `(module, *arguments, spec)`."""
