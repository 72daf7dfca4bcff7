"""Any objective, trained through a low-rank adapter.

`adapted(objective, lora)` is the same objective with another `init` and another reading of the variables:

- `init` is the objective's own, then factors are added, then every other parameter goes to `frozen`. The
  optimizer, the average and the gradient see the factors alone.
- the loss is the objective's own, traced with deltas on the dense layers that hold factors. A kernel that
  the loss reads without calling its layer (a vocabulary head that scores tile by tile) has its delta added
  before.
- what evaluates, shows or is handed on is the objective's own over the merged tree.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax

from dew.lora.config import LORA_A, LoRA
from dew.lora.factors import (
    adapt,
    factors_of,
    flattened,
    merged,
    modules_with_factors,
    nested,
    with_factors,
    without_factors,
)
from dew.lora.forward import adapted_pass
from dew.objectives.base import (
    FROZEN,
    Batch,
    EMASpec,
    Objective,
    Path,
    Step,
    Variables,
    freeze,
    thaw,
)

if TYPE_CHECKING:
    from dew.training.config import MeshSpec
    from dew.training.state import TrainState
    from dew.training.trainer import Rollout


def adapted[O: Objective[Any, Any]](objective: O, lora: LoRA) -> O:
    """Return `objective` so that it trains the factors of `lora` and nothing else.

    The result is an instance of the objective's class. A target that names no module of the model is refused
    when the variables are initialised or traced.

    Raises:
        ValueError: the objective is adapted already.
    """
    kind = type(objective)
    if issubclass(kind, Adapted):
        raise ValueError(f"{kind.__name__} is adapted already; adapt the objective it was made from")
    members: dict[str, Any] = {
        "adapter": lora,
        "merged_first": frozenset[Path](),
        "__module__": kind.__module__,
    }
    if objective.ema is not None:
        spec = factors_average(objective.ema, lora)
        members["ema"] = property(lambda self: spec)
    twin = copy.copy(objective)
    object.__setattr__(twin, "__class__", type(kind.__name__, (Adapted, kind), members))
    return twin


def factors_average(spec: EMASpec, lora: LoRA) -> EMASpec:
    """The average of the factors that `spec` would average; the base has no need of one."""
    return EMASpec(spec.decay, lambda path: lora.trainable(path) and spec.select(path))


class Adapted(Objective[Any, Any]):
    """What an adapted objective does in place of its own class; `adapted` puts it before that class."""

    adapter: LoRA
    merged_first: frozenset[Path]
    """Modules whose delta is added to the kernel before the loss, since the loss does not call them."""

    def init(self, key: jax.Array, variables: Variables | None = None) -> Variables:
        """The base as the objective draws or holds it, under `frozen`, and the factors, under `params`.

        A held tree may contain factors, which then go on.

        Raises:
            ValueError: a target that names no module, or an objective that freezes parameters itself.
        """
        held = self.held_variables() if variables is None else variables
        given = {} if held is None else factors_of(held)
        whole = super().init(key, without_factors(held) if held is not None and given else held)
        if FROZEN in whole:
            raise ValueError(
                f"{type(self).__name__} freezes parameters of its own, and lora freezes all but the factors; "
                "leave trainable unset"
            )
        return freeze(adapt(with_factors(whole, given), self.adapter, key=key), self.adapter.trainable)

    def loss(self, params: Variables, batch: Batch, step: Step) -> Any:
        """The objective's loss of the adapted model."""
        return self._forward(super().loss, params, batch, step)

    def predict(self, params: Variables, batch: Batch, step: Step, **options: Any) -> Any:
        """The objective's predictions with the adapted model."""
        return self._forward(super().predict, params, batch, step, **options)

    def evaluate(self, params: Variables, batch: Batch, step: Step) -> Any:
        """The objective's artifacts of the merged model."""
        return super().evaluate(merged(params, self.adapter), batch, merged_step(step, self.adapter))

    def preview(self, params: Variables, batch: Batch, step: Step, *, scored: Any = None) -> Any:
        """The objective's display of the merged model."""
        step = merged_step(step, self.adapter)
        return super().preview(merged(params, self.adapter), batch, step, scored=scored)

    def pipeline(self, state: TrainState, *, ema: bool = True, **options: Any) -> Any:
        """The objective's task over the merged model."""
        variables = state.averaged if ema and state.ema is not None else state.params
        whole = merged(variables, self.adapter)
        plain = replace(state, params=whole, ema={} if state.ema is not None else None)
        return super().pipeline(plain, ema=ema, **options)

    def check_mesh(self, mesh: MeshSpec) -> None:
        """Refuse dropout over pipeline stages.

        A microbatch does not know which rows of the batch it holds, so a layer cannot draw for them what it
        draws without a pipeline.

        Raises:
            ValueError: `lora.dropout` with stages; and what the objective refuses.
        """
        super().check_mesh(mesh)
        if mesh.stage > 1 and self.adapter.dropout:
            raise ValueError(
                f"lora.dropout={self.adapter.dropout} draws other numbers under mesh.stage={mesh.stage}; "
                "set lora.dropout=0 or mesh.stage=1"
            )

    def step_cost(self, batch: Batch) -> None:
        """Not known: the objective counts gradients of the base's kernels, which this pass does not form."""
        return None

    def _forward(
        self, call: Callable[..., Any], params: Variables, batch: Batch, step: Step, **options: Any
    ) -> Any:
        """`call` over the variables with their factors, those of `merged_first` already in their kernels.

        Which modules a loss does not call is seen when it is traced first; it is then traced once more.
        """
        while True:
            live = self._merged_first(params)
            average = None if step.ema is None else self._merged_first(step.ema)
            trees = [live] if average is None else [live, average]
            flats = [flattened(tree) for tree in trees]
            known = frozenset(id(flat[(*at, LORA_A)]) for flat in flats for at in modules_with_factors(flat))
            with adapted_pass(self.adapter, known) as record:
                result = call(live, batch, replace(step, ema=average), **options)
            uncalled = {
                module
                for module in modules_with_factors(flats[0])
                if not record.used(module, flats[0][(*module, LORA_A)])
            }
            if not uncalled:
                self._check_dropout(record.drawn, called=bool(known))
                return result
            self._merge_first(uncalled)

    def _merged_first(self, params: Variables) -> dict[str, Any]:
        whole = thaw(params)
        if not self.merged_first:
            return whole
        flat = flattened(whole)
        chosen = {path: leaf for path, leaf in flat.items() if path[:-1] in self.merged_first}
        added = flattened(merged(nested(chosen), self.adapter))
        return nested({path: leaf for path, leaf in flat.items() if path not in chosen} | added)

    def _merge_first(self, uncalled: set[Path]) -> None:
        if self.adapter.dropout:
            named = ", ".join("/".join(module[1:]) for module in sorted(uncalled)[:3])
            raise ValueError(
                f"lora.dropout={self.adapter.dropout} drops the inputs of a layer, and the loss of "
                f"{type(self).__name__} reads the kernel of {named} without calling a dense layer there; "
                "set lora.dropout=0 or leave the module out of lora.targets"
            )
        object.__setattr__(self, "merged_first", self.merged_first | uncalled)

    def _check_dropout(self, drawn: bool, *, called: bool) -> None:
        if self.adapter.dropout and called and not drawn:
            raise ValueError(
                f"lora.dropout={self.adapter.dropout}, and {type(self).__name__} trains its model without a "
                "random stream for dropout; set lora.dropout=0"
            )


def merged_step(step: Step, lora: LoRA) -> Step:
    """`step` with the average as the plain model's tree."""
    return step if step.ema is None else replace(step, ema=merged(step.ema, lora))


def merged_rollout(rollout: Rollout, lora: LoRA) -> Rollout:
    """`rollout` over the merged model, which is what an objective's own generation reads."""

    merge = jax.jit(partial(merged, lora=lora))

    def from_merged(params: Variables, batch: Batch, step: Step) -> Batch:
        average = None if step.ema is None else merge(step.ema)
        return rollout(merge(params), batch, replace(step, ema=average))

    return from_merged
