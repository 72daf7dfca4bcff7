"""The fields of a reinforcement batch. Importing it imports no JAX.

Dimensions: B prompts, P prompt slots, R responses, S targets a row. A row is packed: the prompt's real ids,
the response, then filling; target s is the id in slot s + 1.
"""

from __future__ import annotations

PROMPT_KEY = "prompt"
"""[B, P] ids of the prompts a rollout continues."""

PROMPT_MASK_KEY = "prompt_mask"
"""[B, P], nonzero where a slot of the prompt holds a real id; without it every slot does."""

MASK_KEY = "loss_mask"
"""[R, S] float32, 1 for the targets that the policy drew and that train it. Never inferred from ids."""

BEHAVIOR_KEY = "behavior_log_probs"
"""[R, S] float32 under the distribution that drew the target: after temperature and filters."""

OLD_KEY = "old_log_probs"
"""[R, S] float32 under the policy's own distribution when the target was drawn."""

REFERENCE_KEY = "reference_log_probs"
"""[R, S] float32 under the reference's own distribution, where it is computed beforehand."""

ADVANTAGES_KEY = "advantages"
"""[R] float32, one number for a response."""

REWARDS_KEY = "rewards"
"""[R] float32, NaN where the reward abstained."""

NO_SPREAD_KEY = "no_spread"
"""[R] float32, 1 for the responses of a group whose rewards are all equal: nothing tells them apart."""

SINGLETON_KEY = "singleton"
"""[R] float32, 1 for the responses of a group with fewer than two rewards."""
