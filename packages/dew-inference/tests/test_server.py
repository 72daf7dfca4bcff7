"""A served request beside the same request alone: tokens, likelihoods, bits."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from hypothesis import given, settings
from hypothesis import strategies as st

from dew.inference import Server, TextGeneration
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.nn.inputs import ModelInputs
from dew.sampling import Sampling
from dew.sampling.decoding import MaxNewTokens, Temperature, TopK

pytestmark = pytest.mark.alone

FIELDS = ("tokens", "lengths", "terminated", "behavior_log_probs", "raw_log_probs")
POLICY = Sampling(temperature=0.9, top_k=30, top_p=0.95, min_p=0.001, eos_id=7, pad_id=3)
CAPACITY = 48


@functools.cache
def serving(policy=POLICY, scale=1.5):
    """A task over a small transformer with grouped heads, windows and a soft cap, far from uniform."""
    model = CausalTransformer(
        vocab_size=61,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        intermediate_size=48,
        max_seq_len=96,
        sliding_window=5,
        sliding_layers=(True, False),
        final_logit_softcap=20.0,
    )
    variables = nn.unbox(model.init(jax.random.key(0), jnp.zeros((1, 4), jnp.int32)))
    return TextGeneration(model, jax.tree.map(lambda leaf: scale * leaf, variables), sampling=policy)


def prompt(length, seed):
    return np.random.default_rng(seed).integers(1, 61, length).tolist()


@functools.cache
def alone(length, budget, seed, policy=POLICY):
    """The request run by its task, without a server."""
    return serving(policy)(prompt(length, seed), budget, seed=seed).host()


@functools.cache
def served_alone(length, budget, seed, slots):
    server = Server.from_task(serving(), slots=slots, capacity=CAPACITY)
    return server.submit(prompt(length, seed), budget, seed=seed).result()


def submit(server, length, budget, seed):
    return server.submit(prompt(length, seed), budget, seed=seed)


def same_draws(served, expected):
    for name in FIELDS[:3]:
        np.testing.assert_array_equal(getattr(served, name), getattr(expected, name), err_msg=name)
    for name in FIELDS[3:]:
        np.testing.assert_allclose(
            getattr(served, name), getattr(expected, name), atol=1e-5, rtol=0, err_msg=name
        )


def same_bits(served, expected):
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(served, name), getattr(expected, name), err_msg=name)


requests = st.tuples(st.integers(1, 30), st.integers(1, 16), st.integers(0, 400))
law = settings(max_examples=25, deadline=None, derandomize=True)


@law
@given(
    arrivals=st.lists(st.tuples(requests, st.integers(0, 3)), min_size=1, max_size=8),
    slots=st.sampled_from([1, 3]),
)
def test_a_served_request_draws_what_it_draws_alone(arrivals, slots):
    """Any arrival order, any number of rows, any neighbours: requests come while others are under way."""
    server = Server.from_task(serving(), slots=slots, capacity=CAPACITY)
    tickets = []
    for request, steps in arrivals:
        tickets.append((submit(server, *request), request))
        for _ in range(steps):
            server.step()
    server.run()
    for ticket, request in tickets:
        same_draws(ticket.result(), alone(*request))


@law
@given(
    subject=requests,
    before=st.lists(requests, max_size=4),
    after=st.lists(requests, max_size=4),
    steps=st.integers(0, 6),
    cancelled=st.integers(0, 7),
    slots=st.sampled_from([2, 3]),
)
def test_a_served_request_has_the_same_bits_whatever_its_neighbours_are(
    subject, before, after, steps, cancelled, slots
):
    server = Server.from_task(serving(), slots=slots, capacity=CAPACITY)
    others = [submit(server, *request) for request in before]
    ticket = submit(server, *subject)
    others += [submit(server, *request) for request in after]
    for _ in range(steps):
        server.step()
    for other in others[cancelled:]:
        other.cancel()
    server.run()
    same_bits(ticket.result(), served_alone(*subject, slots))


def test_stepping_and_running_give_the_same_bits():
    burst = [(9, 14, 1), (30, 3, 2), (2, 16, 3), (17, 11, 4), (5, 1, 5)]
    results = []
    for drive in (Server.run, lambda server: [server.step() for _ in range(60)]):
        server = Server.from_task(serving(), slots=2, capacity=CAPACITY)
        tickets = [submit(server, *request) for request in burst]
        drive(server)
        assert all(ticket.settled for ticket in tickets)
        results.append([ticket.result() for ticket in tickets])
    for stepped, ran in zip(*results, strict=True):
        same_bits(stepped, ran)


@pytest.mark.parametrize(
    "policy",
    [
        Sampling(temperature=0),
        Sampling(temperature=0, eos_id=tuple(range(0, 61, 2))),
        Sampling(top_k=2),
        Sampling(temperature=1.3, top_p=0.5),
        Sampling(min_p=0.2, eos_id=(5, 6)),
    ],
    ids=["greedy", "greedy until an end", "top-k", "top-p", "min-p"],
)
def test_the_tasks_policy_is_the_policy_of_every_request(policy):
    server = Server.from_task(serving(policy), slots=2, capacity=CAPACITY)
    burst = [(9, 12, 1), (14, 3, 2), (2, 16, 3), (16, 11, 4)]
    tickets = [submit(server, *request) for request in burst]
    server.run()
    for ticket, request in zip(tickets, burst, strict=True):
        same_draws(ticket.result(), alone(*request, policy))


def test_a_chain_and_criteria_bound_to_the_task_are_run():
    base = serving()
    task = TextGeneration(
        base.model,
        base.variables,
        sampling=POLICY,
        logits=(Temperature(0.5), TopK(3)),
        stopping=(MaxNewTokens(6),),
    )
    server = Server.from_task(task, slots=2, capacity=CAPACITY)
    served = server.submit(prompt(9, 1), 20, seed=1).result()
    same_draws(served, task(prompt(9, 1), 20, seed=1).host())
    assert served.lengths.tolist() == [6]
    assert not served.terminated.any()


def test_calling_the_server_is_calling_the_task():
    """A batch with its padding: the same record, and row i draws with i folded into the key."""
    rows = [prompt(length, length) for length in (3, 20, 1, 8)]
    server = Server.from_task(serving(), slots=3, capacity=CAPACITY)
    key = jax.random.key(11)
    served, expected = server(rows, 12, key=key), serving()(rows, 12, key=key)
    same_draws(served, expected.host())
    assert (served.rows, served.prompt_width, served.eos_ids) == (4, 20, (7,))
    assert served.responses() == expected.responses()


def test_a_padded_prompt_is_returned_as_it_was_given():
    tokens = np.asarray([[50, 0, 51, 52, 0]], np.int32)
    padded = ModelInputs(tokens, {"attention_mask": tokens > 0})
    served = Server.from_task(serving(), slots=2, capacity=CAPACITY).submit(padded, 9, seed=4).result()
    same_draws(served, serving()(padded, 9, seed=4).host())
    assert served.tokens[0, :5].tolist() == tokens[0].tolist()


def test_the_key_of_a_row_is_taken_as_it_is():
    keys = jax.random.split(jax.random.key(3), 2)
    server = Server.from_task(serving(), slots=2, capacity=CAPACITY)
    both = server([prompt(5, 0), prompt(5, 0)], 10, key=keys)
    one = server.submit(prompt(5, 0), 10, key=keys[1:]).result()
    np.testing.assert_array_equal(both.tokens[1], one.tokens[0])
    assert both.tokens[0].tolist() != both.tokens[1].tolist()


def test_few_executables_serve_many_lengths():
    """One for each bucket of prompt widths (16, 32, 48 slots) and one for the step."""
    from dew.inference.server.rows import advance, enter

    task = serving(Sampling(temperature=0.77))
    before = enter._cache_size(), advance._cache_size()
    for seed in (0, 1):
        server = Server.from_task(task, slots=5, capacity=CAPACITY)
        tickets = [submit(server, length, 5, seed) for length in range(1, 44, 2)]
        server.step()
        server.run()
        server.bind(task.variables).submit(prompt(4, 0), 3, seed=0).result()
        assert all(ticket.stage == "done" for ticket in tickets)
    assert (enter._cache_size() - before[0], advance._cache_size() - before[1]) == (3, 1)


def test_new_weights_never_read_old_keys_and_values():
    """A server is bound to other weights while requests are under way: both sides draw as if alone."""
    other = serving(scale=1.2)
    burst = [(9, 14, 1), (30, 13, 2), (2, 16, 3)]
    old = Server.from_task(serving(), slots=2, capacity=CAPACITY)
    waiting = [submit(old, *request) for request in burst]
    for _ in range(5):
        old.step()
    new = old.bind(other.variables)
    fresh = Server.from_task(other, slots=2, capacity=CAPACITY)
    bound, expected = ([submit(server, *request) for request in burst] for server in (new, fresh))
    for server in (new, fresh, old):
        server.run()
    for mine, theirs in zip(bound, expected, strict=True):
        same_bits(mine.result(), theirs.result())
    for ticket, request in zip(waiting, burst, strict=True):
        same_draws(ticket.result(), alone(*request))
    assert bound[0].result().tokens.tolist() != waiting[0].result().tokens.tolist()


def test_rows_fill_again_as_soon_as_they_are_free():
    """Two rows, budgets 12, 2, 2, 2, 2: the short ones pass through the second row, one after another."""
    server = Server.from_task(serving(Sampling()), slots=2, capacity=CAPACITY)
    tickets = [submit(server, 4, budget, seed) for seed, budget in enumerate((12, 2, 2, 2, 2))]
    order = [server.step() for _ in range(11)]
    assert list(itertools.chain(*order)) == [*tickets[1:], tickets[0]]
    assert [len(each) for each in order] == [1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 1]
