"""The dtypes and devices that a task opens a run with."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from dew.training import MeshSpec, build_mesh
from dew.training.opening import named_dtype, opened_mesh


def test_none_and_auto_keep_what_is_stored_and_a_name_is_its_dtype():
    assert named_dtype("dtype", None) is named_dtype("dtype", "auto") is None
    assert named_dtype("dtype", "bfloat16") == jnp.bfloat16


@pytest.mark.parametrize("name", ["int8", "float64", "flaot32"])
def test_a_dtype_no_run_opens_in_is_refused_by_its_field(name):
    with pytest.raises(ValueError, match=f"param_dtype='{name}' must be float32, bfloat16, float16 or auto"):
        named_dtype("param_dtype", name)


def test_a_specification_becomes_its_mesh_and_a_mesh_stays():
    mesh = opened_mesh(MeshSpec())
    assert isinstance(mesh, jax.sharding.Mesh) and mesh == build_mesh(MeshSpec())
    assert opened_mesh(mesh) is mesh and opened_mesh(None) is None
