"""Optimizers built from a configuration, against torch's (golden), Optax's and closed forms."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dew.config import OptimConfig
from dew.training.optim import ParamGroup, build_optimizer, mup_param_groups
from dew.training.optim.config import EXPERTS, Linear

GOLDEN = json.loads((Path(__file__).parent / "golden" / "optimizers.json").read_text())
PARAMS = {
    "embed": {"embedding": jnp.linspace(-1.0, 1.0, 12).reshape(4, 3)},
    "layer": {"kernel": jnp.linspace(0.5, 2.0, 6).reshape(3, 2), "bias": jnp.array([1.0, -2.0])},
}
GRADS = jax.tree.map(lambda leaf: jnp.cos(3 * leaf), PARAMS)


def built(total_updates=10, **fields):
    return build_optimizer(OptimConfig(**fields), total_updates=total_updates)


def steps(optimizer, params, gradient, count):
    """The parameters after each of `count` updates with `gradient(step, params)`."""
    state, history = optimizer.init(params), []
    update = jax.jit(optimizer.update)
    for step in range(count):
        updates, state = update(gradient(step, params), state, params)
        params = optax.apply_updates(params, updates)
        history.append(params)
    return history


def same_updates(ours, reference, count=4, params=PARAMS, **tolerance):
    """Compare `count` steps with changing gradients."""

    def gradient(step, current):
        return jax.tree.map(lambda leaf: jnp.cos((step + 2) * leaf), current)

    for mine, theirs in zip(
        steps(ours, params, gradient, count), steps(reference, params, gradient, count), strict=True
    ):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, **({"rtol": 1e-6} | tolerance)), mine, theirs
        )


TORCH = {
    "adam": {"optimizer": "adam", "learning_rate": 0.01, "optimizer_opts": {"b2": 0.95}},
    "adamw": {"learning_rate": 0.01, "optimizer_opts": {"b2": 0.95}, "weight_decay": 0.1},
    "adamw_clipped": {
        "learning_rate": 0.02,
        "optimizer_opts": {"b1": 0.8, "b2": 0.99},
        "weight_decay": 0.3,
        "clip_grads": 0.5,
    },
}


def follows(optimizer, problem, recorded):
    """Compare twenty steps of a recorded problem with what was recorded of each."""
    tree = {name: jnp.asarray(start, jnp.float32) for name, start in problem["start"].items()}
    target = {name: jnp.asarray(problem["target"][name], jnp.float32) for name in tree}

    def gradient(step, params):
        return jax.tree.map(lambda p, t: GOLDEN["scales"][step] * (p - t), params, target)

    for step, params in enumerate(steps(optimizer, tree, gradient, 20)):
        for name, values in recorded.items():
            np.testing.assert_allclose(params[name], values[step], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("rule", TORCH)
def test_twenty_steps_equal_torch(rule):
    follows(built(**TORCH[rule]), GOLDEN, GOLDEN["rules"][rule])


def test_twenty_steps_with_mup_rates_and_a_decay_mask_equal_torch():
    undecayed = tuple(ParamGroup(f"*{name}", weight_decay=0.0) for name in ("embedding", "scale", "bias"))
    hidden = mup_param_groups(4.0, ("*/self_attn/*/kernel", EXPERTS))
    optimizer = built(**TORCH["adamw"], param_groups=(*undecayed, *hidden))
    follows(optimizer, GOLDEN["grouped"], GOLDEN["grouped"]["steps"])


@pytest.mark.parametrize(
    ("fields", "reference"),
    [
        ({"optimizer": "adam", "learning_rate": 0.1}, optax.adam(0.1)),
        ({"learning_rate": 0.1}, optax.adamw(0.1)),
        (
            {"learning_rate": 0.1, "weight_decay": 0.2, "optimizer_opts": {"nesterov": True}},
            optax.adamw(0.1, weight_decay=0.2, nesterov=True),
        ),
        ({"optimizer": "lamb", "learning_rate": 0.1}, optax.lamb(0.1)),
        (
            {"optimizer": "lamb", "learning_rate": 0.1, "weight_decay": 0.3},
            optax.lamb(0.1, weight_decay=0.3),
        ),
        (
            {"learning_rate": 0.1, "clip_grads": 0.2},
            optax.chain(optax.clip_by_global_norm(0.2), optax.adamw(0.1)),
        ),
    ],
    ids=["adam", "adamw", "nesterov", "lamb", "lamb-decay", "clip"],
)
def test_updates_equal_the_same_rule_of_optax(fields, reference):
    same_updates(built(**fields), reference)


def test_schedule_reads_completed_updates_from_zero():
    optimizer = built(learning_rate=1.0, optimizer="adam", schedule=Linear(warmup_updates=2), total_updates=4)
    history = steps(optimizer, PARAMS, lambda step, params: GRADS, 5)
    biases = np.stack([PARAMS["layer"]["bias"], *(each["layer"]["bias"] for each in history)])
    # With one constant gradient Adam's direction is its sign, so each move is the rate of that update.
    moves = np.abs(np.diff(biases, axis=0))
    np.testing.assert_allclose(moves[:, 0], [0.0, 0.5, 1.0, 0.5, 0.0], atol=1e-5)


def test_first_matching_group_sets_rate_and_decay():
    groups = (
        ParamGroup("params/layer/kernel", lr_multiplier=0.5, weight_decay=0.0),
        ParamGroup("params/layer/*", lr_multiplier=0.0),
        ParamGroup("*/embedding", weight_decay=0.3),
    )
    optimizer = built(learning_rate=0.1, weight_decay=0.7, param_groups=groups)
    updates, _ = optimizer.update(GRADS, optimizer.init(PARAMS), PARAMS)
    sign = jax.tree.map(jnp.sign, GRADS)
    np.testing.assert_allclose(updates["layer"]["kernel"], -0.05 * sign["layer"]["kernel"], rtol=1e-5)
    np.testing.assert_array_equal(updates["layer"]["bias"], jnp.zeros(2))
    decayed = sign["embed"]["embedding"] + 0.3 * PARAMS["embed"]["embedding"]
    np.testing.assert_allclose(updates["embed"]["embedding"], -0.1 * decayed, rtol=1e-5, atol=1e-7)


def test_parameters_outside_every_group_keep_the_runs_decay():
    optimizer = built(learning_rate=0.1, weight_decay=0.7, param_groups=(ParamGroup("*/kernel", 0.5),))
    updates, _ = optimizer.update(GRADS, optimizer.init(PARAMS), PARAMS)
    expected = -0.1 * (jnp.sign(GRADS["layer"]["bias"]) + 0.7 * PARAMS["layer"]["bias"])
    np.testing.assert_allclose(updates["layer"]["bias"], expected, rtol=1e-5, atol=1e-6)


def test_groups_match_the_same_paths_below_params_and_above():
    groups = (ParamGroup("params/layer/kernel", 0.0),)
    optimizer = built(optimizer="adam", param_groups=groups)
    below, _ = optimizer.update(GRADS, optimizer.init(PARAMS), PARAMS)
    whole = {"params": PARAMS}
    above, _ = optimizer.update({"params": GRADS}, optimizer.init(whole), whole)
    jax.tree.map(np.testing.assert_array_equal, below, above["params"])


def test_pattern_that_matches_nothing_is_refused_with_the_closest_path():
    optimizer = built(param_groups=(ParamGroup("params/layer/kernels"),))
    with pytest.raises(
        ValueError, match=r"'params/layer/kernels' matches none of the 3 .*params/layer/kernel$"
    ):
        optimizer.init(PARAMS)


def test_mup_groups_slow_hidden_matrices_by_the_width():
    groups = mup_param_groups(4.0)
    assert groups == (ParamGroup("*/self_attn/*/kernel", 0.25), ParamGroup("*/mlp/*/kernel", 0.25))


def test_narrow_parameters_keep_float32_moments():
    params = {"a": jnp.ones(3, jnp.bfloat16)}
    state = built().init(params)
    assert {leaf.dtype for leaf in jax.tree.leaves(state) if leaf.ndim} == {jnp.dtype("float32")}


def test_clipping_scales_the_whole_tree_to_the_norm():
    def first_moment(clip):
        optimizer = built(optimizer="adam", clip_grads=clip)
        _, state = optimizer.update(GRADS, optimizer.init(PARAMS), PARAMS)
        return optax.tree.norm(optax.tree.get(state, "mu")) / 0.1

    norm = optax.tree.norm(GRADS)
    np.testing.assert_allclose(first_moment(norm.item() / 2), norm / 2, rtol=1e-5)
    np.testing.assert_allclose(first_moment(norm.item() * 2), norm, rtol=1e-5)


REFUSED = [
    ({"optimizer_opts": {"beta2": 0.9}}, r"optim\.optimizer_opts\.beta2: adamw has no such option"),
    ({"optimizer_opts": {"b_2": 0.9}}, r"did you mean b2\?"),
    ({"optimizer_opts": {"b2": "0.9"}}, r"optim\.optimizer_opts\.b2='0\.9' must be a number"),
    ({"optimizer": "sgd"}, r"optim\.optimizer='sgd' must be one of"),
    ({"optimizer": "adam", "weight_decay": 0.1}, "needs adamw"),
    ({"optimizer": "adam", "param_groups": (ParamGroup("*", 1.0, 0.1),)}, "needs adamw"),
    ({"optimizer": "muon", "state_dtype": "bfloat16"}, "works with adam and adamw, not muon"),
    ({"optimizer": "muon", "optimizer_opts": {"tau": 9.0}}, r"optim\.optimizer_opts\.tau: muon has no such"),
    (
        {"optimizer": "muonclip", "optimizer_opts": {"tau": 0}},
        r"optim\.optimizer_opts\.tau=0 must be above 0",
    ),
    ({"learning_rate": -1.0}, r"optim\.learning_rate=-1\.0 must be 0 or more"),
    ({"clip_grads": float("nan")}, r"optim\.clip_grads=nan"),
]


@pytest.mark.parametrize(("fields", "message"), REFUSED, ids=[str(each[0]) for each in REFUSED])
def test_what_an_optimizer_does_not_take_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        OptimConfig(**fields)
