"""Experts over meshes: the numbers of one device, whatever the loads, the replayed record and the layout."""

from __future__ import annotations

from pathlib import Path

import pytest

from dew.testing.devices import on_devices, result_on_devices

EIGHT = """
import jax, jax.numpy as jnp, numpy as np
from dew.nn.moe import Mixture, MixtureOfExperts
from dew.nn.sharding import unboxed
from dew.testing.collectives import collectives, kinds
from dew.training import Layout, MeshSpec, build_mesh
from dew.training.mesh import batch_sharding

layer = MixtureOfExperts(Mixture(num_experts=4, top_k=2), 16, precision="highest")
x = jax.random.normal(jax.random.key(0), (8, 3, 8))
boxed = layer.init(jax.random.key(1), x)

def loss(variables, x):
    return jnp.sum(jnp.sin(layer.apply(variables, x)))

step = jax.value_and_grad(loss, argnums=(0, 1))
# Drawn loads, and every token at experts 1 and 2, which two devices of four hold.
crowded = jax.tree.map(lambda leaf: leaf, unboxed(boxed))
crowded["params"]["gate"]["kernel"] = jnp.zeros((8, 4)).at[0].set(jnp.asarray([0.0, 9.0, 8.0, 0.0]))
for variables, x in ((unboxed(boxed), x), (crowded, x.at[..., 0].set(1.0))):
    whole = jax.device_get(jax.jit(step)(variables, x))
    for spec, exchanged in ((MeshSpec(expert=4, fsdp=2), 1), (MeshSpec(), 0), (MeshSpec(expert=8), 0),
                            (MeshSpec(expert=2, tensor=2), 1)):
        mesh = build_mesh(spec)
        placed = jax.device_put(variables, Layout(min_shard=8).shardings(mesh, boxed))
        rows = jax.device_put(x, batch_sharding(mesh))
        with jax.set_mesh(mesh):
            compiled = jax.jit(step).lower(placed, rows).compile()
        split = jax.device_get(compiled(placed, rows))
        for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(split), strict=True):
            gap = np.abs(one - other).max() / max(np.abs(one).max(), 1e-3)
            assert gap <= 2e-6, (spec, one.shape, gap)
        bank = placed["params"]["experts_up_proj"].sharding.spec
        assert ("expert" in tuple(bank)) == bool(exchanged), (spec, bank)
        print(spec, dict(kinds(collectives(compiled.as_text()))))
print("equal")
"""


@pytest.mark.slow
def test_over_meshes_values_and_gradients_are_those_of_one_device():
    assert on_devices("-c", EIGHT).strip().endswith("equal")


@pytest.mark.slow
def test_trained_parameters_are_those_of_one_device_with_and_without_a_record():
    gaps = result_on_devices(str(Path(__file__).with_name("experts_on_eight.py")))
    assert len(gaps) == 3
    for name, gap in gaps.items():
        assert gap < 1e-11, (name, gap)  # float64; a bias that moved the other way would be off by 1
