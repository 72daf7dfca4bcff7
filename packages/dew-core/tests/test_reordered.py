"""The same sums in another order: other last bits, the same numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.testing.reordered import reordered

WEIGHT = jax.random.normal(jax.random.key(0), (64, 64))
ROWS = jax.random.normal(jax.random.key(1), (4, 64))


def scanned(weight, rows):
    def body(carry, row):
        return (jnp.tanh(weight @ carry[0] + row), carry[1] + 1), carry[0].sum()

    return jax.lax.scan(body, (rows[0], 0), rows)


def looped(weight, rows):
    return jax.lax.fori_loop(0, 3, lambda index, carry: jnp.tanh(weight @ carry) * (index + 1), rows[0])


def branched(weight, rows):
    return jax.lax.cond(rows[0, 0] > -100, lambda: weight @ rows[0], lambda: rows[0])


@pytest.mark.parametrize("function", [scanned, looped, branched, jnp.matmul])
def test_another_order_changes_last_bits_alone(function):
    given = (WEIGHT, ROWS.T) if function is jnp.matmul else (WEIGHT / 8, ROWS)
    expected, found = function(*given), reordered(function, 0)(*given)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-4), expected, found)
    pairs = zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True)
    assert any((np.asarray(one) != np.asarray(other)).any() for one, other in pairs)
