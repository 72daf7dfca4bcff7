"""The mixture of experts: its law by hand, its balance terms by hand, and the same numbers over a mesh."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.moe import Mixture, MixtureOfExperts
from dew.nn.moe.router import RoutingLoad
from dew.nn.sharding import unboxed
from dew.objectives.base import Mean
from dew.objectives.lm import LMObjective
from dew.objectives.lm.routing import RouterTerms
from dew.testing.devices import on_devices

FOUR = Mixture(num_experts=4, top_k=2)


def drawn(mixture=FOUR, rows=3):
    layer = MixtureOfExperts(mixture, 6, precision="highest")
    x = jax.random.normal(jax.random.key(0), (rows, 5, 8))
    return layer, unboxed(layer.init(jax.random.key(1), x)), x


def by_hand(variables, x, mixture, bias=0.0):
    """Token by token in numpy."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), variables["params"])
    x = np.asarray(x, np.float64)
    logits = x @ params["gate"]["kernel"]
    scores = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    out = np.zeros_like(x)
    for place in np.ndindex(x.shape[:2]):
        chosen = np.argsort(-(scores[place] + bias), kind="stable")[: mixture.top_k]
        weights = scores[place][chosen]
        for expert, weight in zip(
            chosen, weights / weights.sum() if mixture.normalize else weights, strict=True
        ):
            gate = x[place] @ params["experts_gate_proj"][expert]
            hidden = gate / (1 + np.exp(-gate)) * (x[place] @ params["experts_up_proj"][expert])
            out[place] += weight * (hidden @ params["experts_down_proj"][expert])
    return out


@pytest.mark.parametrize("normalize", [True, False])
def test_every_token_gets_the_weighted_sum_of_the_experts_it_chose(normalize):
    mixture = Mixture(num_experts=4, top_k=2, normalize=normalize)
    layer, variables, x = drawn(mixture)
    expected = by_hand(variables, x, mixture)
    np.testing.assert_allclose(layer.apply(variables, x), expected, atol=2e-6)


def test_no_expert_has_a_capacity():
    layer, variables, x = drawn()
    everyone_to_one = jnp.zeros((8, 4)).at[:, 2].set(5.0)
    variables["params"]["gate"]["kernel"] = everyone_to_one
    x = jnp.abs(x)
    np.testing.assert_allclose(layer.apply(variables, x), by_hand(variables, x, FOUR), atol=2e-5)


def test_bias_shifts_the_choice_and_not_the_weights():
    mixture = Mixture(num_experts=4, top_k=2, bias=True)
    layer, variables, x = drawn(mixture)
    bias = np.array([0.0, 0.9, -0.9, 0.0])
    variables["moe"]["gate"]["bias"] = jnp.asarray(bias, jnp.float32)
    expected = by_hand(variables, x, mixture, bias)
    np.testing.assert_allclose(layer.apply(variables, x), expected, atol=2e-6)


def load(counts, scores, log_partition=0.0):
    counts, scores = np.atleast_2d(counts), np.atleast_2d(scores)
    return RoutingLoad(
        jnp.asarray(counts, jnp.int32), jnp.asarray(scores, jnp.float32), jnp.full(len(counts), log_partition)
    )


@pytest.mark.parametrize(("seq_aux", "expected"), [(True, 1.25), (False, 1.0)])
def test_balance_is_formed_within_rows_or_over_the_step(seq_aux, expected):
    # Two rows of four positions, one choice each: by row 2 (.75 .75 + .25 .25) = 1.25, together uniform.
    terms = RouterTerms(aux_loss_alpha=1.0, seq_aux=seq_aux)
    loads = {("gate",): load([[3, 1], [1, 3]], [[3.0, 1.0], [1.0, 3.0]])}
    stats = terms.statistics(Mean(jnp.asarray(0.0), jnp.asarray(1.0)), loads, 1, 4)
    assert float(terms.reduced(stats, 1)[0]) == pytest.approx(expected)


def test_router_z_loss_is_a_mean_over_positions():
    terms = RouterTerms(router_z_loss=0.5)
    stats = terms.statistics(
        Mean(jnp.asarray(3.0), jnp.asarray(1.0)), {("gate",): load([2], [2.0], 8.0)}, 1, 4
    )
    assert float(terms.reduced(stats, 1)[0]) == pytest.approx(3.0 + 0.5 * 8 / 4)


def test_biases_move_towards_the_mean_load_by_the_rate():
    terms = RouterTerms(balance_rate=0.1)
    moved = terms.moved({"moe": {"bias": jnp.zeros(3)}}, {"bias": jnp.asarray([5, 3, 1])})
    np.testing.assert_allclose(moved["moe"]["bias"], [-0.1, 0.0, 0.1], atol=1e-7)


def test_a_load_too_large_for_a_product_in_int32_is_compared_exactly():
    terms = RouterTerms(balance_rate=1.0)
    counts = jnp.asarray([700_000_001, 700_000_000, 700_000_000])
    moved = terms.moved({"moe": {"bias": jnp.zeros(3)}}, {"bias": counts})
    np.testing.assert_array_equal(moved["moe"]["bias"], [-1.0, 1.0, 1.0])


def decoder(**fields):
    return CausalTransformer(vocab_size=32, hidden_size=8, num_layers=1, num_heads=2, max_seq_len=8, **fields)


@pytest.mark.parametrize(
    ("model", "options", "named"),
    [
        (decoder(), {"aux_loss_alpha": 0.1}, r"aux_loss_alpha=0.1 needs .* mixture"),
        (decoder(), {"router_z_loss": 0.1}, r"router_z_loss=0.1 needs .* mixture"),
        (decoder(mixture=FOUR), {"balance_rate": 0.1}, r"balance_rate=0.1 .* bias=True"),
        (decoder(mixture=FOUR), {"seq_aux": False}, r"seq_aux=False .* aux_loss_alpha is unset"),
        (decoder(mixture=FOUR), {"aux_loss_alpha": -1.0}, r"aux_loss_alpha=-1.0 must be 0 or more"),
    ],
)
def test_terms_without_their_routers_are_refused(model, options, named):
    with pytest.raises(ValueError, match=named):
        LMObjective(model, 8, **options)


def test_loads_of_a_model_without_routers_are_refused():
    objective = LMObjective(decoder(), 8)
    with pytest.raises(ValueError, match=r"routing=True needs .* mixture"):
        objective.token_scores({"params": {}}, jnp.zeros((1, 9), jnp.int32), routing=True)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"num_experts": 0, "top_k": 1}, "num_experts=0"),
        ({"num_experts": 2, "top_k": 3}, "top_k=3 is above num_experts=2"),
        ({"num_experts": 2, "top_k": 1, "layers": (False,)}, "no layer"),
    ],
)
def test_mixtures_that_cannot_be_are_refused(fields, named):
    with pytest.raises(ValueError, match=named):
        Mixture(**fields)


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
whole = jax.device_get(jax.jit(step)(unboxed(boxed), x))
for spec, exchanged in ((MeshSpec(expert=4, fsdp=2), 1), (MeshSpec(), 0), (MeshSpec(expert=8), 0),
                        (MeshSpec(expert=2, tensor=2), 1)):
    mesh = build_mesh(spec)
    placed = jax.device_put(unboxed(boxed), Layout(min_shard=8).shardings(mesh, boxed))
    rows = jax.device_put(x, batch_sharding(mesh))
    with jax.set_mesh(mesh):
        compiled = jax.jit(step).lower(placed, rows).compile()
    split = jax.device_get(compiled(placed, rows))
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(split), strict=True):
        gap = np.abs(one - other).max() / np.abs(one).max()
        assert gap <= 2e-6, (spec, one.shape, gap)
    bank = placed["params"]["experts_up_proj"].sharding.spec
    assert ("expert" in tuple(bank)) == bool(exchanged), (spec, bank)
    print(spec, dict(kinds(collectives(compiled.as_text()))))
print("equal")
"""


@pytest.mark.slow
def test_over_meshes_values_and_gradients_are_those_of_one_device():
    assert on_devices("-c", EIGHT).strip().endswith("equal")
