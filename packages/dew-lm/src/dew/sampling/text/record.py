"""What a request yields.

Dimensions: B prompts, n continuations of each, P prompt slots, N the budget, R = B * n rows, the
continuations of a prompt together and the prompts in the order of the request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import jax
import numpy as np
from flax import struct
from jaxtyping import Bool, Float, Int

from dew.sampling.text.cutting import cut
from dew.sampling.text.placing import local_rows

if TYPE_CHECKING:
    from dew.inference.text.processor import Processor

type Array = jax.Array | np.ndarray


@struct.dataclass
class Generation:
    """Prompts with their continuations, and how likely each drawn token was.

    Attributes:
        tokens: `[R, P + N]`, the prompt as it was given and the response; `pad_id` stands after a row's end.
        lengths: `[R]` response tokens, the one that ended the row included.
        terminated: `[R]`, whether the row ended by itself; False where a budget cut it off.
        behavior_log_probs: `[R, N]` float32, under the distribution that drew the token: after the
            temperature and the filters. Zero after a row's end.
        raw_log_probs: `[R, N]` float32, under the model's own distribution. Zero after a row's end.
        rows: this process's prompts times n.
        prompt_width: P.
        eos_ids: the ids that end a row and belong to no text.
        processor: decodes the rows, where a task bound one.
        stops: the strings that end a row's text; they and what follows them belong to no text. Of one that
            began in the prompt, what was drawn stays: a text is cut where a whole string stands in it.
    """

    tokens: Int[Array, "R S"]
    lengths: Int[Array, " R"]
    terminated: Bool[Array, " R"]
    behavior_log_probs: Float[Array, "R N"]
    raw_log_probs: Float[Array, "R N"]
    rows: int = struct.field(pytree_node=False)
    prompt_width: int = struct.field(pytree_node=False)
    eos_ids: tuple[int, ...] = struct.field(pytree_node=False, default=())
    processor: Processor | None = struct.field(pytree_node=False, default=None)
    stops: tuple[str, ...] = struct.field(pytree_node=False, default=())

    def host(self) -> Self:
        """This process's rows over host arrays, without those that fill up a mesh."""
        return jax.tree.map(lambda leaf: local_rows(leaf)[: self.rows], self)

    def responses(self) -> list[list[int]]:
        """The response ids of each row, without an end token."""
        rows = self.host()
        return response_ids(np.asarray(rows.tokens)[:, self.prompt_width :], rows.lengths, self.eos_ids)

    @property
    def text(self) -> tuple[str, ...]:
        """The response of each row as text, up to a string that stopped it.

        Raises:
            ValueError: no task with a processor drew these rows.
        """
        if self.processor is None:
            raise ValueError(
                "this Generation holds token ids alone; draw it through a TextGeneration with a processor, "
                "or decode responses() yourself"
            )
        return tuple(cut(self.processor.decode(ids), self.stops) for ids in self.responses())


def response_ids(drawn: Array, lengths: Array, eos_ids: tuple[int, ...]) -> list[list[int]]:
    """The first `lengths` ids of each row of `drawn`, without an end token."""
    found: list[list[int]] = []
    for row, length in zip(np.asarray(drawn), np.asarray(lengths), strict=True):
        ids = [int(each) for each in row[: int(length)]]
        found.append(ids[:-1] if ids and ids[-1] in eos_ids else ids)
    return found
