"""What the processes of `test_generate_on_meshes.py` run: requests over a mesh, and some that disagree."""

from __future__ import annotations

import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.inputs import ModelInputs
from dew.nn.sharding import unboxed
from dew.sampling import Beam, Sampling, Speculative, generate
from dew.sampling.text import operations
from dew.training import Layout, MeshSpec, build_mesh

VOCABULARY, WIDTH, BUDGET = 37, 6, 7
MODEL = CausalTransformer(
    vocab_size=VOCABULARY,
    hidden_size=16,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    intermediate_size=32,
    max_seq_len=48,
    num_nextn_predict_layers=2,
    precision="highest",
)
REQUESTS: dict[str, dict[str, Any]] = {
    "sample": {"n": 2, "sampling": Sampling(temperature=0.9, top_p=0.95, eos_id=3, pad_id=36)},
    "beam": {"n": 2, "sampling": Sampling(eos_id=3, pad_id=36), "strategy": Beam(width=3)},
    "speculative": {"sampling": Sampling(pad_id=36), "strategy": Speculative(block=3)},
}


def placed(mesh):
    """The variables on `mesh`, or on one device."""
    boxed = MODEL.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    host = jax.tree.map(lambda leaf: 2.0 * np.asarray(leaf), unboxed(boxed))
    if mesh is None:
        return host
    shardings = Layout(min_shard=16, tolerance=1.0).shardings(mesh, boxed)
    return jax.tree.map(
        lambda leaf, sharding: jax.make_array_from_callback(leaf.shape, sharding, lambda at: leaf[at]),
        host,
        shardings,
    )


def prompts(rows):
    """These of ten prompts of unequal length."""
    tokens = np.random.default_rng(2).integers(1, VOCABULARY, (10, WIDTH)).astype(np.int32)
    lengths = np.asarray([6, 1, 4, 2, 5, 3, 6, 2, 1, 4])
    mask = np.arange(WIDTH) >= WIDTH - lengths[:, None]
    return ModelInputs(tokens[rows], {"attention_mask": mask[rows]})


def drawn(*, mesh, rows, names):
    """Every request of `names` over this process's share of `rows` prompts."""
    built = None if mesh is None else build_mesh(MeshSpec(**mesh))
    variables = placed(built)
    each = rows // jax.process_count()
    mine = np.arange(each) + each * jax.process_index()
    found = {}
    for name in names:
        record = generate(MODEL, variables, prompts(mine), BUDGET, seed=5, **REQUESTS[name])
        host = record.host()
        found[name] = {
            "tokens": host.tokens.tolist(),
            "lengths": host.lengths.tolist(),
            "raw": host.raw_log_probs.tolist(),
            "behavior": host.behavior_log_probs.tolist(),
            "placed": record.tokens.shape[0],
            "spec": str(record.tokens.sharding.spec) if built else "",
            "split": len({str(shard.index) for shard in record.tokens.addressable_shards}),
        }
    return found


def ban(*tokens):
    """A transform whose table is data."""
    table = np.isin(np.arange(VOCABULARY), tokens)
    return jax.tree_util.Partial(lambda banned, state, logits: jnp.where(banned, -jnp.inf, logits), table)


def above(floor):
    """A transform that closes over a number."""
    return lambda state, logits: jnp.where(logits < floor, -jnp.inf, logits)


def refused():
    """What each of several disagreeing requests raises here, and whether any read a prompt."""
    variables = placed(build_mesh(MeshSpec(fsdp=2)))
    second = jax.process_index() == 1
    rows = np.arange(2) + 2 * second
    outside = prompts(rows)
    outside.tokens[0, -1] = VOCABULARY if second else 1
    cases: dict[str, dict[str, Any]] = {
        "bad id": {"inputs": outside},
        "count": {"inputs": prompts(rows[: 1 + second])},
        "width": {"inputs": ModelInputs(np.ones((2, 4 + second), np.int32))},
        "n": {"n": 1 + second},
        "budget": {"max_new_tokens": 3 + second},
        "seed": {"seed": int(second)},
        "table": {"logits": (ban(1, 2 + second),)},
        "closure": {"logits": (above(-1.0 - second),)},
        "no description": {"logits": (above(threading.Lock() if second else 1.0),)},
        "chain": {"sampling": Sampling(top_k=3) if second else Sampling(top_p=0.5)},
        "end": {"sampling": Sampling(eos_id=3 + second)},
        "strategy": {"strategy": Beam(width=2 + second)},
        "refused strategy": {"strategy": Beam(width=2), "n": 3},
    }
    before = operations.read_prompts._cache_size()
    said = {}
    for name, case in cases.items():
        given = {"inputs": prompts(rows), "max_new_tokens": 3, "seed": 0} | case
        try:
            generate(MODEL, variables, given.pop("inputs"), given.pop("max_new_tokens"), **given)
        except Exception as error:
            said[name] = [type(error).__name__, str(error)]
        else:
            said[name] = ["", ""]
    return {"said": said, "read": operations.read_prompts._cache_size() - before}


def in_a_pool(*, mesh, rows, names):
    """`drawn` and `refused`, in this order of one pool."""
    return {"drawn": drawn(mesh=mesh, rows=rows, names=names), "refused": refused()}
