"""How a task that opens a run reads the names of dtypes and the devices it is given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from dew.training.config import MeshSpec

DTYPES = ("float32", "bfloat16", "float16")
"""The dtypes that a run can be opened in."""


def named_dtype(field: str, name: str | None) -> jnp.dtype | None:
    """The dtype called `name`; None for None and "auto", which keep what is stored.

    Raises:
        ValueError: it is none that a run can be opened in; the message calls it `field`.
    """
    if name is None or name == "auto":
        return None
    if name not in DTYPES:
        raise ValueError(f"{field}={name!r} must be {', '.join(DTYPES)} or auto")
    return jnp.dtype(name)


def opened_mesh(mesh: Mesh | MeshSpec | None) -> Mesh | None:
    """The devices that a mesh's specification stands for; a mesh and None stay what they are.

    Raises:
        ValueError: a specification that the visible devices do not fit.
    """
    if mesh is None or isinstance(mesh, jax.sharding.Mesh):
        return mesh
    from dew.training.mesh import build_mesh

    return build_mesh(mesh)
