"""The fields of a preference batch. Importing it imports no JAX.

Dimensions: P pairs, S targets a row. A row is packed: the prompt's ids, the response's, its end, then
filling; target s is the id in slot s + 1. Filling stands behind the text, so what a counted target is
predicted from holds none.
"""

from __future__ import annotations

CHOSEN_KEY = "chosen"
"""[P, S + 1] ids of the prompts with their preferred responses, int32."""

CHOSEN_MASK_KEY = "chosen_mask"
"""[P, S], nonzero at the response's targets, its end included; never inferred from ids."""

REJECTED_KEY = "rejected"
"""[P, S + 1] ids of the same prompts with the other responses, int32."""

REJECTED_MASK_KEY = "rejected_mask"
"""[P, S], as `chosen_mask`."""
