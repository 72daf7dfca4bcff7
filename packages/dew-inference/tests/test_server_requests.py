"""What a server refuses, how a request leaves it, and what one request cannot do to another."""

import os
import subprocess
import sys
from concurrent.futures import CancelledError
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from dew.inference import Server, TextGeneration
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.sampling import Sampling
from dew.sampling.decoding import ForcedEOS, MaxNewTokens, NoRepeatNGram, SuppressTokens, Temperature

POISON = 40
"""An id whose embedding is NaN."""


@pytest.fixture(scope="module")
def task():
    model = CausalTransformer(
        vocab_size=41, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32, max_seq_len=64
    )
    variables = nn.unbox(model.init(jax.random.key(0), jnp.zeros((1, 4), jnp.int32)))
    embedding = variables["params"]["embed_tokens"]["embedding"]
    variables["params"]["embed_tokens"]["embedding"] = embedding.at[POISON].set(jnp.nan)
    return TextGeneration(model, variables, sampling=Sampling(temperature=0, pad_id=1), max_new_tokens=6)


@pytest.fixture
def server(task):
    return Server.from_task(task, slots=2, capacity=48)


def test_a_failed_request_keeps_its_error_and_leaves_its_row_clean(task, server):
    """Its keys and values are not numbers; the next request in its row, a shorter one, reads none of them."""
    failing = server.submit([5] * 10 + [POISON] * 20, seed=0)
    beside = server.submit([5, 6], 20, seed=0)
    server.run()
    assert (failing.stage, beside.stage) == ("failed", "done")
    with pytest.raises(FloatingPointError, match="the model's own logits are NaN"):
        failing.result()
    after = server.submit([5, 6], 20, seed=0).result()
    expected = task([5, 6], 20, seed=0)
    for served in (beside.result(), after):
        np.testing.assert_array_equal(served.tokens, expected.tokens)
        np.testing.assert_allclose(served.raw_log_probs, expected.raw_log_probs, atol=1e-5, rtol=0)


def test_a_served_row_reads_its_own_history_and_its_own_budget(task):
    """Rows of a server have slots for more tokens than a request may draw."""
    chain = (NoRepeatNGram(2), SuppressTokens(POISON), ForcedEOS(3), Temperature(1.5))
    task = replace(task, logits=chain, sampling=Sampling(eos_id=3, pad_id=1))
    server = Server.from_task(task, slots=2, capacity=48)
    prompts = [([5, 6, 5], 4), ([7, 8], 9), ([5], 6)]
    tickets = [server.submit(prompt, budget, seed=budget) for prompt, budget in prompts]
    server.run()
    for (prompt, budget), ticket in zip(prompts, tickets, strict=True):
        expected = task(prompt, budget, seed=budget)
        np.testing.assert_array_equal(ticket.result().tokens, expected.tokens)
        assert expected.tokens[0, -1] in (1, 3)


def test_an_id_the_model_lacks_is_refused_by_the_server(task):
    with pytest.raises(ValueError, match="names the id 41"):
        Server.from_task(replace(task, logits=(SuppressTokens(41),)), slots=2, capacity=48)


def test_a_batch_with_a_failing_prompt_raises_after_the_others_ran(server):
    waiting = server.submit([7], 3, seed=1)
    with pytest.raises(FloatingPointError, match="generated token 0"):
        server([[5, 6], [POISON, POISON]], seed=0)
    assert waiting.stage == "done"


def test_a_cancelled_request_frees_its_row_at_once(server):
    first, second, third = (server.submit([each], 30, seed=0) for each in (1, 2, 3))
    server.step()
    assert [each.stage for each in (first, second, third)] == ["running", "running", "waiting"]
    assert first.cancel()
    server.step()
    assert [each.stage for each in (first, third)] == ["cancelled", "running"]
    with pytest.raises(CancelledError, match="cancelled"):
        first.result()


def test_a_cancelled_request_draws_no_further_token(server):
    """It had drawn two when it was cancelled; the other row goes on to its ten."""
    leaving, staying = (server.submit([5, 6], budget, seed=0) for budget in (20, 10))
    server.step()
    leaving.cancel()
    staying.result()
    assert np.asarray(server._rows.state.step).tolist() == [2, 10]


def test_a_waiting_request_is_cancelled_before_it_enters(server):
    tickets = [server.submit([each], 2, seed=0) for each in (1, 2, 3)]
    assert tickets[2].cancel()
    assert set(server.run()) == set(tickets[:2])


def test_a_settled_request_cannot_be_cancelled(server):
    ticket = server.submit([1], 2, seed=0)
    ticket.result()
    assert not ticket.cancel()
    assert ticket.result().lengths.tolist() == [2]


def test_a_result_steps_the_server_only_as_far_as_it_must(server):
    long, short = server.submit([1], 30, seed=0), server.submit([2], 3, seed=0)
    assert short.result().lengths.tolist() == [3]
    assert long.stage == "running"


def test_the_budget_is_the_tasks_where_the_call_names_none(server):
    assert server.submit([1], seed=0).result().lengths.tolist() == [6]


def test_a_server_without_requests_has_nothing_to_do(server):
    assert server.step() == ()
    assert server.run() == ()


@pytest.mark.parametrize(
    ("request_", "arguments", "error", "named"),
    [
        ([1] * 40, {"max_new_tokens": 9}, ValueError, r"make 49; a row of this server holds capacity=48"),
        ([1] * 60, {"max_new_tokens": 9}, ValueError, "max_seq_len=64"),
        ([[1], [2]], {}, ValueError, "one prompt, and the request holds 2"),
        ([1], {"max_new_tokens": 0}, ValueError, "max_new_tokens=0"),
        ([1], {"max_new_tokens": True}, ValueError, "max_new_tokens=True"),
        ([1], {"max_new_tokens": 2.5}, ValueError, r"max_new_tokens=2\.5"),
        ([41], {}, ValueError, "id 41"),
        ([], {}, ValueError, "empty"),
        ("text", {}, ValueError, "no processor"),
        ([1.5], {}, TypeError, "1.5"),
        ([1], {"seed": None}, ValueError, "exactly one of key and seed"),
        ([1], {"seed": None, "key": jax.random.key(0, impl="rbg")}, TypeError, "rbg"),
    ],
)
def test_a_request_that_breaks_a_rule_is_refused_before_it_waits(server, request_, arguments, error, named):
    with pytest.raises(error, match=named):
        server.submit(request_, **{"seed": 0, **arguments})
    assert server.step() == ()


def test_a_batch_with_one_wrong_prompt_queues_none_of_it(server):
    with pytest.raises(ValueError, match="capacity=48"):
        server([[1], [1] * 40], 20, seed=0)
    assert server.step() == ()


@pytest.mark.parametrize(
    ("change", "sizes", "named"),
    [
        ({}, {"slots": 0}, "slots=0"),
        ({}, {"slots": True}, "slots=True"),
        ({}, {"slots": 2.0}, r"slots=2\.0"),
        ({}, {"slots": "2"}, "slots='2'"),
        ({}, {"capacity": 48.0}, r"capacity=48\.0 "),
        ({}, {"capacity": 1}, "capacity=1 "),
        ({}, {"capacity": 65}, "max_seq_len=64"),
        ({"n": 2}, {}, "n=2"),
        ({"strategy": "beam"}, {}, "strategy='beam'"),
        ({"sampling": Sampling(eos_id=41)}, {}, "eos_id=41"),
        ({"stopping": (MaxNewTokens(np.asarray([3, 4])),)}, {}, "one by one"),
        ({"stopping": (MaxNewTokens(np.asarray([3, 4, 5])),)}, {}, "one by one"),
    ],
)
def test_a_task_or_a_size_that_cannot_be_served_is_refused(task, change, sizes, named):
    with pytest.raises(ValueError, match=named):
        Server.from_task(replace(task, **change), **{"slots": 2, "capacity": 48, **sizes})


def test_another_kind_of_task_is_refused():
    with pytest.raises(TypeError, match="TextGeneration task, not dict"):
        Server.from_task({}, slots=2, capacity=48)


def test_weights_over_several_devices_are_refused():
    """In a process of its own, which has two virtual devices."""
    code = """
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from flax import linen as nn
from dew.inference import Server, TextGeneration
from dew.nn.backbones.causal_transformer import CausalTransformer

model = CausalTransformer(vocab_size=8, hidden_size=4, num_layers=1, num_heads=1, max_seq_len=8)
variables = nn.unbox(model.init(jax.random.key(0), jnp.zeros((1, 4), jnp.int32)))
everywhere = NamedSharding(jax.make_mesh((2,), ("data",)), PartitionSpec())
try:
    Server.from_task(TextGeneration(model, jax.device_put(variables, everywhere)), slots=2, capacity=8)
except ValueError as error:
    print(error)
"""
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert "the task's weights lie on 2 devices, and a server runs on one" in done.stdout, done.stderr


def test_admission_decides_who_enters_first(task):
    """The request with the smallest budget first, and one at a time."""

    def shortest(waiting, free):
        return sorted(waiting, key=lambda ticket: ticket.max_new_tokens)[:1]

    server = Server.from_task(task, slots=2, capacity=48, admission=shortest)
    tickets = [server.submit([1], budget, seed=0) for budget in (12, 8, 4)]
    server.step()
    assert [each.stage for each in tickets] == ["waiting", "waiting", "running"]
    server.step()
    assert [each.stage for each in tickets] == ["waiting", "running", "running"]


@pytest.mark.parametrize(
    ("choose", "named"),
    [
        (lambda waiting, free: waiting, "3 requests for 2 free rows"),
        (lambda waiting, free: [waiting[0], waiting[0]], "twice"),
        (lambda waiting, free: [object()], "not waiting"),
        (lambda waiting, free: [], "never end"),
    ],
)
def test_an_admission_that_breaks_its_contract_is_named(task, choose, named):
    server = Server.from_task(task, slots=2, capacity=48, admission=choose)
    for each in (1, 2, 3):
        server.submit([each], seed=0)
    with pytest.raises(ValueError, match=named):
        server.step()
