"""A decoder's layers over the stages of a pipeline.

Dimensions: B rows, T tokens, E model width, b rows of one microbatch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
from flax import linen as nn
from flax.core.scope import CollectionFilter

from dew.nn.backbones.causal_transformer.spec import Places
from dew.nn.moe.routes import RouterRows
from dew.nn.pipeline import stage_bank, through_stages
from dew.nn.stack import StackView
from dew.training.mesh import STAGE_AXIS
from dew.training.widths import like

type Reports = dict[str, dict[str, Any]]
"""What layers sowed: collection, layer's name, and the nested values."""


def layers_over_stages(
    layers: Sequence[nn.Module],
    variables: Mapping[str, Any],
    view: StackView,
    stages: int,
    *,
    x: jax.Array,
    places: Places,
    segment_ids: jax.Array | None,
    routing: RouterRows | None,
    sown: Sequence[str],
) -> tuple[jax.Array, Reports]:
    """Run the layers of a decoder, each stage its own, microbatch after microbatch.

    Args:
        layers: the bound modules, first to last.
        variables: of the decoder: collections that hold the layers' subtrees.
        view: which subtrees these are.
        stages: of the pipeline.
        x: [B, T, E].
        places: of the tokens.
        segment_ids: [B, T] or None.
        routing: what routers are told, with the routes of every layer; or None.
        sown: collections the layers report into; what they sow has a row in front for each row of `x`.

    Raises:
        ValueError: layers that do not divide, or rows that cannot be cut.
    """
    held_at = view.staged(_by_layer(variables, view.names), stages)
    bank = tuple(stage_bank(layers) for layers in held_at)
    run = [(layer.clone(parent=None), held[0]) for layer, held in zip(layers, held_at, strict=False)]

    def stage(bank: Any, x: jax.Array, rows: Any, shared: Any) -> tuple[jax.Array, Any]:
        given: dict[str, Any] = {**rows, **shared}
        told: RouterRows | None = given["routing"]
        first = jax.lax.axis_index(STAGE_AXIS) * len(run)
        reports: list[Any] = []
        for index, ((layer, stored), wide) in enumerate(zip(run, bank, strict=True)):
            own = like(wide, stored)
            inputs = (
                x,
                given["places"],
                given["segment_ids"],
                None if told is None else told.at(first + index),
            )
            x, report = layer.apply(own, *inputs, mutable=list(sown))
            reports.append(report)
        return x, reports

    rows: dict[str, Any] = {"segment_ids": segment_ids, "routing": routing}
    shared: dict[str, Any] = {}
    (rows if places.positions.shape[0] > 1 else shared)["places"] = places
    x, reports = through_stages(stage, bank, x, rows, shared)
    found: Reports = {name: {} for name in sown}
    for index, name in enumerate(view.names):
        at, place = divmod(index, len(bank))
        for collection, report in reports[place].items():
            found[collection][name] = jax.tree.map(lambda leaf, at=at: leaf[at], report)
    return x, found


def sown_collections(mutable: CollectionFilter, variables: Mapping[str, Any]) -> tuple[str, ...]:
    """The collections that a call opened for reports: those it named that hold no variables yet.

    Raises:
        ValueError: the call opened every collection, or all but some.
    """
    if mutable is False:
        return ()
    if isinstance(mutable, str):
        return () if mutable in variables else (mutable,)
    if not isinstance(mutable, Iterable):
        raise ValueError(f"mutable={mutable!r} over pipeline stages; name the collections to be reported")
    return tuple(sorted(name for name in mutable if name not in variables))


def _by_layer(variables: Mapping[str, Any], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    return {
        name: {collection: tree[name] for collection, tree in variables.items() if name in tree}
        for name in names
    }
