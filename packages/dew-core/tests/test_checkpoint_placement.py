"""A checkpoint is restored into the template's placement, whatever devices wrote it."""

import pytest

from dew.testing.devices import on_devices

MOVED = """
import sys
import jax, numpy as np, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
from dew.training import Checkpoints, MeshSpec, build_mesh
from dew.training.state import TrainState

def state(mesh, spec):
    place = NamedSharding(mesh, spec)
    whole = NamedSharding(mesh, P())
    w = jax.device_put(jax.random.normal(jax.random.key(0), (16, 24)).astype(jnp.bfloat16), place)
    count = jax.device_put(jnp.asarray(3), whole)
    key = jax.device_put(jax.random.key(7), whole)
    return TrainState(count, count, count, {"params": {"w": w}}, {"mu": w * 2}, None, key, None, count)

def described(state):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)

def bits(leaf):
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf).tobytes()

saved = state(build_mesh(MeshSpec(fsdp=8)), P("fsdp", None))
writer = Checkpoints(sys.argv[1])
writer.save(1, saved, None)
writer.wait()
places = [
    (1, MeshSpec(), P()),
    (2, MeshSpec(fsdp=2), P(None, "fsdp")),
    (4, MeshSpec(fsdp=2, tensor=2), P("tensor")),
]
for active in (False, True):
    for devices, spec, split in places:
        mesh = build_mesh(spec, jax.devices()[:devices])
        wanted = state(mesh, split)
        template = described(wanted)
        with jax.set_mesh(mesh) if active else jax.default_matmul_precision("float32"):
            found, _ = Checkpoints(sys.argv[1]).restore(template)
        for path, leaf in jax.tree.leaves_with_path(found):
            goal = dict(jax.tree.leaves_with_path(wanted))[path]
            assert leaf.sharding == goal.sharding and leaf.dtype == goal.dtype, (path, leaf.sharding)
            assert leaf.sharding.mesh.axis_types == mesh.axis_types
            assert bits(leaf) == bits(goal), path
print("placed")
"""


@pytest.mark.slow
def test_eight_devices_checkpoint_lies_on_one_two_and_four_as_the_template_says(tmp_path):
    assert on_devices("-c", MOVED, str(tmp_path)).strip() == "placed"
