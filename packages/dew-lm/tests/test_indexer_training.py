"""Training of the lightning indexer: its divergence by hand, what it trains, and what it refuses."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from dew.cli.arguments import parse
from dew.nn.backbones.causal_transformer import MLA, CausalTransformer
from dew.nn.moe import Mixture
from dew.nn.sharding import unboxed
from dew.objectives.base import Step, scalar_loss, under
from dew.objectives.lm import IndexerTraining, LMObjective, LMRunConfig
from dew.objectives.lm.batch import SEGMENTS_KEY
from dew.objectives.lm.indexing import of_indexer

WIDTHS = {"kv_lora_rank": 6, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 3, "q_lora_rank": 5}
HEADS = {"index_n_heads": 3, "index_head_dim": 4}
S, EPSILON = 7, 1e-6
IDS = np.random.default_rng(0).integers(0, 32, (2, S + 1)).astype(np.int32)
SEGMENTS = np.array([[1, 1, 1, 1, 2, 2, 2, 2], [1, 1, 1, 1, 1, 1, 0, 0]], np.int32)


def decoder(*, layers=1, **mixer):
    return CausalTransformer(
        vocab_size=32,
        hidden_size=8,
        num_layers=layers,
        num_heads=2,
        intermediate_size=12,
        max_seq_len=8,
        precision="highest",
        mixer=MLA(**{**WIDTHS, **HEADS, **mixer}),
    )


def warmup(**fields):
    return LMObjective(decoder(), S, ema_decay=None, indexer=IndexerTraining("warmup"), **fields)


def sparse(topk=3, weight=1.0, **fields):
    training = IndexerTraining("sparse", weight)
    return LMObjective(decoder(index_topk=topk), S, ema_decay=None, indexer=training, **fields)


def drawn(objective, scale=3.0):
    return jax.tree.map(lambda leaf: scale * leaf, unboxed(objective.init(jax.random.key(0))))


def evaluated(objective, variables, segments=None):
    batch = {"text": IDS} | ({} if segments is None else {SEGMENTS_KEY: segments})
    step = Step(step=0, key=jax.random.key(1))
    return jax.jit(lambda tree: scalar_loss(objective, tree, batch, step))(variables)


def gradient(objective, variables):
    step = Step(step=0, key=jax.random.key(1))

    def loss(params):
        return scalar_loss(objective, {**variables, "params": params}, {"text": IDS}, step)[0]

    return flatten_dict(jax.jit(jax.grad(loss))(variables["params"]), sep="/")


def rms(x, scale, epsilon):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * scale


def turned(x, *, neighbours=False):
    """The two turning coordinates at the front of [B, T, H, D], by the position's own angle."""
    angle = np.arange(x.shape[1])[:, None]
    first, second, rest = x[..., 0], x[..., 1], x[..., 2:]
    both = [first * np.cos(angle) - second * np.sin(angle), second * np.cos(angle) + first * np.sin(angle)]
    return np.concatenate([np.stack(both, -1), rest], -1)


def by_hand(variables, segments, topk=None):
    """The mean divergence of the first layer, in float64, from the weights alone."""
    tree = {"params": {**variables.get("frozen", {})}}
    flat = flatten_dict(tree["params"], sep="/") | flatten_dict(variables["params"], sep="/")
    w = {name: np.asarray(leaf, np.float64) for name, leaf in flat.items()}
    at = "layers_0/self_attn"
    ids = IDS[:, :-1]
    x = rms(w["embed_tokens/embedding"][ids], w["layers_0/input_layernorm/scale"], EPSILON)
    residual = rms(x @ w[f"{at}/q_a_proj/kernel"], w[f"{at}/q_a_layernorm/scale"], EPSILON)
    query = (residual @ w[f"{at}/q_b_proj/kernel"]).reshape(2, S, 2, 6)
    compressed = x @ w[f"{at}/kv_a_proj_with_mqa/kernel"]
    latent = rms(compressed[..., :6], w[f"{at}/kv_a_layernorm/scale"], EPSILON)
    still = (latent @ w[f"{at}/kv_b_proj/kernel"]).reshape(2, S, 2, 7)[..., :4]
    shared = turned(compressed[..., None, 6:])
    scores = np.einsum("bthd,bshd->bhts", query[..., :4], still)
    scores = (scores + np.einsum("bthd,bsd->bhts", turned(query[..., 4:]), shared[:, :, 0])) / np.sqrt(6)
    at = f"{at}/indexer"
    asked = turned((residual @ w[f"{at}/wq_b/kernel"]).reshape(2, S, 3, 4))
    key = x @ w[f"{at}/wk/kernel"]
    key = key - key.mean(-1, keepdims=True)
    key = rms(key, w[f"{at}/k_norm/scale"], EPSILON) + w[f"{at}/k_norm/bias"]
    products = np.maximum(np.einsum("btjd,bsd->btjs", asked, turned(key[:, :, None])[:, :, 0]), 0) / np.sqrt(
        4
    )
    index = np.einsum("btj,btjs->bts", x @ w[f"{at}/weights_proj/kernel"] / np.sqrt(3), products)
    total, count = 0.0, 0
    for row in range(2):
        for t in range(S):
            seen = [s for s in range(t + 1) if segments is None or segments[row, s] == segments[row, t]]
            if segments is not None and segments[row, t] == 0:
                continue
            if topk is not None:
                seen = sorted(seen, key=lambda s: -index[row, t, s])[:topk]
            attention = np.exp(scores[row, :, t][:, seen])
            share = (attention / attention.sum(-1, keepdims=True)).sum(0)
            share = share / share.sum()
            guess = np.exp(index[row, t, seen]) / np.exp(index[row, t, seen]).sum()
            total, count = total + np.sum(share * np.log(share / guess)), count + 1
    return total / count


@pytest.mark.parametrize("segments", [None, SEGMENTS], ids=["whole", "packed"])
def test_the_warmup_loss_is_the_divergence_over_every_allowed_key(segments):
    objective = warmup()
    variables = drawn(objective)
    loss, aux = evaluated(objective, variables, segments)
    expected = by_hand(variables, segments)
    assert expected > 0.05
    assert float(loss) == pytest.approx(expected, rel=2e-5)
    assert set(aux.metrics) == {"indexer_kl"}
    assert float(aux.metrics["indexer_kl"]) == pytest.approx(expected, rel=2e-5)


@pytest.mark.parametrize("segments", [None, SEGMENTS], ids=["whole", "packed"])
def test_the_sparse_loss_adds_the_weighted_divergence_over_the_selected_keys(segments):
    variables = drawn(sparse())
    loss, aux = evaluated(sparse(weight=0.5), variables, segments)
    plain = LMObjective(decoder(index_topk=3), S, ema_decay=None)
    tokens, _ = evaluated(plain, variables, segments)
    expected = by_hand(variables, segments, topk=3)
    assert float(aux.metrics["indexer_kl"]) == pytest.approx(expected, rel=2e-5)
    assert float(loss) == pytest.approx(float(tokens) + 0.5 * expected, rel=1e-5)
    assert by_hand(variables, segments) != pytest.approx(expected, rel=1e-2)


def test_a_warmup_holds_everything_but_the_indexer():
    variables = unboxed(warmup().init(jax.random.key(0)))
    trained = flatten_dict(variables["params"], sep="/")
    assert {name.split("indexer/")[-1] for name in trained} == {
        "wq_b/kernel",
        "wk/kernel",
        "k_norm/scale",
        "k_norm/bias",
        "weights_proj/kernel",
    }
    assert not any("indexer" in name for name in flatten_dict(variables["frozen"], sep="/"))


def test_neither_term_of_the_sparse_phase_reaches_the_others_parameters():
    variables = drawn(sparse())
    both, double = gradient(sparse(), variables), gradient(sparse(weight=2.0), variables)
    plain = gradient(LMObjective(decoder(index_topk=3), S, ema_decay=None), variables)
    for name, leaf in both.items():
        if of_indexer(tuple(name.split("/"))):
            assert not np.any(plain[name]), name
            assert np.any(leaf), name
            np.testing.assert_allclose(double[name], 2 * leaf, rtol=1e-5, atol=1e-8)
        else:
            np.testing.assert_array_equal(double[name], leaf, err_msg=name)
            np.testing.assert_array_equal(plain[name], leaf, err_msg=name)


@pytest.mark.slow
def test_the_gradient_of_a_warmup_is_that_of_finite_differences():
    objective = warmup()
    variables = drawn(objective)
    found = gradient(objective, variables)
    name = "layers_0/self_attn/indexer/weights_proj/kernel"
    flat = flatten_dict(variables["params"])

    def moved(step):
        path = tuple(name.split("/"))
        leaf = np.asarray(flat[path], np.float64)
        leaf = leaf.copy()
        leaf[2, 1] += step
        return by_hand({**variables, "params": unflat(flat, path, leaf)}, None)

    slope = (moved(1e-5) - moved(-1e-5)) / 2e-5
    assert float(found[name][2, 1]) == pytest.approx(slope, rel=1e-3)


def unflat(flat, path, leaf):
    from flax.traverse_util import unflatten_dict

    return unflatten_dict({**flat, path: leaf})


def test_a_dense_checkpoint_without_an_indexer_starts_a_warmup():
    dense = LMObjective(decoder(index_n_heads=None, index_head_dim=None), S, ema_decay=None)
    held = unboxed(dense.init(jax.random.key(3)))
    started = unboxed(warmup(pretrained=held).init(jax.random.key(4)))
    kept = flatten_dict(started["frozen"], sep="/")
    assert set(kept) == set(flatten_dict(held["params"], sep="/"))
    for name, leaf in flatten_dict(held["params"], sep="/").items():
        np.testing.assert_array_equal(kept[name], leaf, err_msg=name)


def test_the_split_tree_of_a_warmup_starts_the_sparse_phase():
    split = unboxed(warmup().init(jax.random.key(0)))
    started = unboxed(sparse(pretrained=split).init(jax.random.key(9)))
    assert "frozen" not in started
    whole = flatten_dict(started["params"], sep="/")
    for part in ("params", "frozen"):
        for name, leaf in flatten_dict(split[part], sep="/").items():
            np.testing.assert_array_equal(whole[name], leaf, err_msg=name)


def test_a_checkpoint_that_lacks_more_than_the_indexer_is_refused():
    held = unboxed(LMObjective(decoder(index_n_heads=None, index_head_dim=None), S).init(jax.random.key(3)))
    del held["params"]["norm"]
    with pytest.raises(ValueError, match="hold nothing at params/norm/scale"):
        warmup(pretrained=held).init(jax.random.key(4))


@pytest.mark.parametrize(
    ("phase", "mixer", "fields", "message"),
    [
        ("warmup", {}, {"trainable": under("params", "norm")}, "trainable with indexer"),
        ("warmup", {"index_topk": 3}, {}, "index_topk=3; unset it, or use phase='sparse'"),
        ("sparse", {}, {}, "index_topk is unset; set it, or use phase='warmup'"),
        ("sparse", {"index_n_heads": None, "index_head_dim": None}, {}, "the model has none"),
        ("warmup", {}, {"z_loss": 1e-4}, "z_loss=0.0001 with indexer phase='warmup'"),
        ("warmup", {}, {"loss_role": 2}, "loss_role='2' with indexer phase='warmup'"),
        ("warmup", {}, {"qk_stats": True}, "qk_stats=True with indexer phase='warmup'"),
    ],
)
def test_contradictions_are_refused_by_name(phase, mixer, fields, message):
    with pytest.raises(ValueError, match=message):
        LMObjective(decoder(**mixer), S, indexer=IndexerTraining(phase), **fields)


def test_a_model_without_a_mixer_is_refused():
    plain = CausalTransformer(vocab_size=32, hidden_size=8, num_layers=1, num_heads=2, max_seq_len=8)
    with pytest.raises(ValueError, match="the model has none; set index_n_heads"):
        LMObjective(plain, S, indexer=IndexerTraining("sparse"))


def test_a_phase_or_a_weight_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match="phase='dense' must be"):
        IndexerTraining("dense")
    with pytest.raises(ValueError, match=r"weight=0.0 must be above 0"):
        IndexerTraining("sparse", 0.0)


def test_a_run_with_an_indexer_has_nothing_to_distil():
    with pytest.raises(ValueError, match="indexer trains by a divergence"):
        warmup().predict({}, {"text": IDS}, Step(step=0, key=jax.random.key(0)), train=False)


@pytest.mark.slow
def test_the_divergence_is_the_mean_over_layers_and_stands_beside_router_terms():
    model = decoder(layers=2, index_topk=3).clone(mixture=Mixture(num_experts=4, top_k=2, bias=True))
    objective = LMObjective(
        model, S, ema_decay=None, indexer=IndexerTraining("sparse"), aux_loss_alpha=0.1, balance_rate=0.1
    )
    variables = drawn(objective)
    loss, aux = evaluated(objective, variables)
    sown = jax.jit(
        lambda tree: model.apply(tree, jnp.asarray(IDS[:, :-1]), method="hidden_states", mutable=["indexer"])
    )(variables)[1]
    layers = [np.mean(sown["indexer"][f"layers_{index}"]["self_attn"]["divergence"]) for index in range(2)]
    assert float(aux.metrics["indexer_kl"]) == pytest.approx(np.mean(layers), rel=1e-6)
    others = LMObjective(model, S, ema_decay=None, aux_loss_alpha=0.1, balance_rate=0.1)
    rest, _ = evaluated(others, variables)
    assert float(loss) == pytest.approx(float(rest) + float(np.mean(layers)), rel=1e-6)


def test_the_indexer_of_a_depth_learns_at_the_tokens_that_the_depth_has():
    model = decoder(index_topk=3).clone(num_nextn_predict_layers=1)
    training = IndexerTraining("sparse")
    objective = LMObjective(model, S, ema_decay=None, indexer=training, mtp_weight=0.3)
    variables = drawn(objective)
    own = {name: leaf for name, leaf in gradient(objective, variables).items() if "depths_0" in name}
    assert any("indexer" in name for name in own) and all(np.any(leaf) for leaf in own.values())
    scores = jax.jit(lambda held: objective.token_scores(held, IDS, depths=True, indexer=True))(variables)
    assert sorted(scores.indexer.weights[:, 0].sum(-1).tolist()) == [S - 1, S]


def test_a_phase_is_asked_for_on_the_command_line_and_kept_in_the_record(tmp_path):
    words = ["indexer:indexer-training", "--indexer.phase", "warmup", "--indexer.weight", "0.5"]
    words = ["--sample-tokens", "0", *words]
    fields = {"hidden_size": 8, "num_layers": 1, "num_heads": 2, "mixer": {**WIDTHS, **HEADS}}
    config = parse("lm", LMRunConfig, ["--model.config", json.dumps(fields), *words])
    assert config.indexer == IndexerTraining("warmup", 0.5)
    config.save(str(tmp_path))
    kept = LMRunConfig.load(str(tmp_path))
    assert kept == config
    objective = kept.build()
    assert objective.indexer_term.alone and objective.model.mixer == MLA(**WIDTHS, **HEADS)
