"""What preference and policy objectives count: the policy three times, a reference once."""

from types import SimpleNamespace

import jax.numpy as jnp
import pytest

from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.objectives.rl import DPOObjective, GRPOObjective
from dew.objectives.rl.batch import REFERENCE_KEY
from dew.objectives.rl.pairs import CHOSEN_KEY
from dew.objectives.rl.policy_loss import PolicyLoss
from dew.sampling import Sampling

MODEL = CausalTransformer(vocab_size=11, hidden_size=8, num_layers=1, num_heads=2, max_seq_len=8)
ROW = MODEL.forward_macs(8)


def test_a_pair_is_two_rows_of_policy_and_reference():
    cost = DPOObjective(MODEL, 8).step_cost({CHOSEN_KEY: jnp.zeros((5, 9), jnp.int32)})
    assert cost.flops == 2 * (3 + 1) * 10 * ROW


@pytest.mark.parametrize(("weight", "held", "passes"), [(None, False, 3), (0.1, False, 4), (0.1, True, 3)])
def test_the_reference_of_a_policy_counts_where_it_is_computed(weight, held, passes):
    responder = SimpleNamespace(sampling=Sampling(), max_new_tokens=4)
    objective = GRPOObjective(MODEL, 8, responder=responder, settings=PolicyLoss(kl_weight=weight))
    batch = {"text": jnp.zeros((6, 9), jnp.int32)} | ({REFERENCE_KEY: jnp.zeros((6, 8))} if held else {})
    assert objective.step_cost(batch).flops == 2 * passes * 6 * ROW
