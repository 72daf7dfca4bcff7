"""Placement as plain records: the mesh's factors, the logical-axis table and what stays in host memory.

Importing this module imports neither jax nor numpy; the methods that place arrays import them inside.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal, cast

if TYPE_CHECKING:
    from typing import Any

    from jax.sharding import Mesh

type Rule = tuple[str, str | None]
"""A logical axis name and the mesh axis it is split over, or None to keep it whole."""

type HostField = Literal["params", "opt_state", "ema"]
"""A field of the train state that can live in host memory."""

PARAMETER_AXES = ("fsdp", "expert", "tensor")
"""The mesh axes that may split a parameter."""

DEFAULT_RULES: tuple[Rule, ...] = (
    ("expert", "expert"),
    ("vocab", "tensor"),
    ("mlp", "tensor"),
    ("heads", "tensor"),
    ("kv_heads", "tensor"),
    ("embed", "fsdp"),
    ("latent", "fsdp"),
    ("head_dim", None),
    ("halves", None),
    ("index_heads", None),
    ("position", None),
    ("norm", None),
    ("layers", None),
)
"""The logical axes that Dew's modules name, in order of precedence, and the mesh axes they are split over."""


@dataclass(frozen=True)
class MeshSpec:
    """How many ways a run is split along each kind of parallelism; data parallelism fills what is left.

    Attributes:
        fsdp: shards of the parameters and the optimizer state.
        expert: groups of experts.
        tensor: shards within a layer's matrices.
        sequence: shards of a row's positions; attention calls exchange heads, or gather keys.
        stage: pipeline stages, each with an equal run of the model's layers.
        microbatches: into how many a pipeline cuts a batch; a positive multiple of `stage`, which must then
            exceed 1. None takes 4 a stage, or fewer if the rows of a device do not divide.
        replicas: groups of granules (slices, hosts, processes) the data axis spans; every other axis lies
            inside a group.

    Raises:
        ValueError: a factor below 1, or `microbatches` without a pipeline or not a multiple of its stages.
    """

    fsdp: int = 1
    expert: int = 1
    tensor: int = 1
    sequence: int = 1
    stage: int = 1
    microbatches: int | None = None
    replicas: int = 1

    def __post_init__(self) -> None:
        for field in fields(self):
            value = cast("int | None", getattr(self, field.name))
            if value is not None and value < 1:
                raise ValueError(f"mesh.{field.name}={value} must be at least 1")
        if self.microbatches is None:
            return
        if self.stage == 1:
            raise ValueError(
                f"mesh.microbatches={self.microbatches} needs a pipeline; "
                "set mesh.stage above 1 or leave it unset"
            )
        if self.microbatches % self.stage:
            raise ValueError(
                f"mesh.microbatches={self.microbatches} must be a multiple of mesh.stage={self.stage}; "
                f"use {self.stage * max(1, self.microbatches // self.stage)}"
            )

    def check_positions(self, name: str, positions: int) -> None:
        """Refuse a length that `sequence` does not cut into equal pieces.

        Raises:
            ValueError: naming what holds so many positions, and what would do.
        """
        shards = self.sequence
        if positions % shards:
            lengths = [
                str(count * shards) for count in (positions // shards, positions // shards + 1) if count
            ]
            raise ValueError(
                f"{name}={positions} must be a multiple of mesh.sequence={shards}, which splits positions; "
                f"use {' or '.join(lengths)}, or mesh.sequence={math.gcd(positions, shards)}"
            )


@dataclass(frozen=True)
class Layout:
    """How arrays are laid over a mesh.

    Attributes:
        rules: logical axis to mesh axis, in order of precedence. A mapping overrides or extends the default
            table. A dimension that the mesh axis does not divide stays whole.
        min_shard: parameters with fewer elements than this are replicated.
        tolerance: the fraction of the shardable parameter elements that may stay replicated.
        host: fields of the train state kept in pinned host memory.
        host_parameters: globs over parameter paths (`params/layers_*`) that an offloaded placement for
            inference keeps in host memory.

    Raises:
        ValueError: a rule to a mesh axis that cannot split parameters, a logical axis named twice, a negative
            `min_shard`, a `tolerance` outside [0, 1], or a host field that is unknown or
            named twice.
    """

    rules: tuple[Rule, ...] | Mapping[str, str | None] = DEFAULT_RULES
    min_shard: int = 65536
    tolerance: float = 0.02
    host: tuple[HostField, ...] = ()
    host_parameters: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", _ordered(self.rules))
        names: set[str] = set()
        for name, axis in cast("tuple[Rule, ...]", self.rules):
            if axis is not None and axis not in PARAMETER_AXES:
                raise ValueError(
                    f"layout.rules sends {name!r} to {axis!r}; parameters are split over "
                    f"{', '.join(PARAMETER_AXES)}, or None to keep the axis whole"
                )
            if name in names:
                raise ValueError(f"layout.rules names {name!r} twice; keep one rule for each logical axis")
            names.add(name)
        if self.min_shard < 0:
            raise ValueError(f"layout.min_shard={self.min_shard} must be 0 or more elements")
        if not 0 <= self.tolerance <= 1:
            raise ValueError(f"layout.tolerance={self.tolerance} must be a fraction in [0, 1]")
        wrong = [name for name in self.host if name not in ("params", "opt_state", "ema")]
        if wrong:
            raise ValueError(f"layout.host={wrong[0]!r} must be one of params, opt_state, ema")
        if len(set(self.host)) < len(self.host):
            raise ValueError(f"layout.host={self.host!r} names a field twice; name each once")

    @property
    def table(self) -> tuple[Rule, ...]:
        """`rules` in order, as pairs."""
        return cast("tuple[Rule, ...]", self.rules)

    def shardings(self, mesh: Mesh, tree: Any) -> Any:
        """A tree like `tree` with the `NamedSharding` of every leaf.

        Args:
            mesh: from `dew.training.build_mesh`.
            tree: arrays or their shapes, boxed with their logical axis names where a module declares them.
        """
        from dew.training.layout import tree_shardings

        return tree_shardings(self, mesh, tree)

    def check(self, params: Any, shardings: Any, mesh: Mesh) -> None:
        """Refuse a placement that leaves more than `tolerance` of the shardable elements replicated.

        Raises:
            ValueError: the fraction is above the tolerance, or `host_parameters` names what this placement
                does not offload.
        """
        from dew.training.layout import check_replication

        check_replication(self, params, shardings, mesh)


def _ordered(rules: tuple[Rule, ...] | Mapping[str, str | None]) -> tuple[Rule, ...]:
    if not isinstance(rules, Mapping):
        return tuple((name, axis) for name, axis in rules)
    return tuple((dict(DEFAULT_RULES) | dict(rules)).items())
