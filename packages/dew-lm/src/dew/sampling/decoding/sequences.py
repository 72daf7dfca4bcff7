"""Scores added to the token that would complete a given sequence.

Reference: `SequenceBiasLogitsProcessor` and `NoBadWordsLogitsProcessor` of transformers 5.16.1, each row
reading its own tokens without padding.

Dimensions: N sequences, L tokens of the longest one before its last.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from dew.sampling.decoding.state import StepState
from dew.sampling.decoding.tokens import Ids, id_array, within

ANY = -1


@struct.dataclass
class SequenceBias:
    """The compiled table of `sequence_bias` and `bad_words`.

    Attributes:
        prefixes: `[N, L]`, the tokens before the last one, right aligned behind -1.
        last: `[N]`, the token that completes the sequence.
        lengths: `[N]`, tokens of the whole sequence.
        biases: `[N]` float32.
    """

    prefixes: Any
    last: Any
    lengths: Any
    biases: Any

    def __call__(self, state: StepState, logits: jax.Array, /) -> jax.Array:
        tokens, held = state.history()
        reach = self.prefixes.shape[1]
        places = held[:, None] - reach + jnp.arange(reach)
        tail = jnp.take_along_axis(tokens, jnp.maximum(places, 0), axis=1)[:, None, :]
        match = jnp.all((self.prefixes == ANY) | (self.prefixes == tail), axis=-1)
        # A sequence as long as the row with its next token is left out too, as in the reference.
        match &= (self.lengths <= held[:, None]) | (self.lengths == 1)
        added = jnp.where(match, self.biases, 0).astype(logits.dtype)
        bias = jnp.zeros_like(logits).at[:, self.last].add(added, mode="drop")
        return logits + bias

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuse ids the model does not have."""
        for ids in (self.prefixes, self.last):
            within("a biased or forbidden sequence", ids, vocab_size)


def sequence_bias(entries: Iterable[tuple[Sequence[int], float]] | Mapping[Any, float]) -> SequenceBias:
    """Add a bias to the token that would complete a sequence.

    A sequence of one token is biased always. A longer one is biased where the row ends with its other tokens
    and holds at least as many tokens as the sequence.

    Args:
        entries: pairs of token ids and their bias, or a mapping of them; `-inf` forbids.

    Raises:
        ValueError: no entry, an empty sequence, a sequence with two biases, or a bias that is NaN or +inf.
        TypeError: an entry that is no pair, or ids that are no integers.

    Example:
        >>> sequence_bias([((10, 45), -2.0), ((64,), 1.5)])
    """
    table: dict[tuple[int, ...], float] = {}
    for entry in entries.items() if isinstance(entries, Mapping) else entries:
        ids, bias = _pair(entry)
        if table.setdefault(ids, bias) != bias:
            raise ValueError(f"sequence_bias gives {list(ids)} both {table[ids]} and {bias}; give it one")
    if not table:
        raise ValueError("sequence_bias holds no sequence; leave it out")
    return compiled(table)


def bad_words(ids: Iterable[Sequence[int]], eos_id: Ids | None = None) -> SequenceBias:
    """Never draw these sequences of tokens.

    Args:
        ids: the sequences.
        eos_id: one id or several; a sequence that is one of them alone is left out, since it ends a row.

    Raises:
        ValueError: no sequence, or an empty one.
        TypeError: ids that are no integers.
    """
    words = [tuple(id_array("bad_words", word).tolist()) for word in ids]
    if not words or () in words:
        raise ValueError(f"bad_words={words} must hold sequences of at least one token id")
    ends = {(each,) for each in ([] if eos_id is None else id_array("eos_id", eos_id).tolist())}
    return compiled({word: -math.inf for word in words if word not in ends})


def compiled(table: Mapping[tuple[int, ...], float]) -> SequenceBias:
    """The table on arrays. Single tokens come first, since their biases are added first."""
    order = sorted(table, key=lambda ids: len(ids) > 1)
    reach = max((len(ids) - 1 for ids in order), default=0)
    prefixes = np.full((len(order), reach), ANY, np.int32)
    for row, ids in enumerate(order):
        if len(ids) > 1:
            prefixes[row, reach - len(ids) + 1 :] = ids[:-1]
    return SequenceBias(
        prefixes=prefixes,
        last=np.asarray([ids[-1] for ids in order], np.int32),
        lengths=np.asarray([len(ids) for ids in order], np.int32),
        biases=np.asarray([table[ids] for ids in order], np.float32),
    )


def _pair(entry: Any) -> tuple[tuple[int, ...], float]:
    if not isinstance(entry, Sequence) or len(entry) != 2:
        raise TypeError(f"sequence_bias holds {entry!r}; an entry is a pair (token ids, bias)")
    ids, bias = tuple(id_array("sequence_bias", entry[0]).tolist()), entry[1]
    if not ids:
        raise ValueError(f"sequence_bias holds {entry!r}; a sequence has at least one token id")
    if isinstance(bias, bool) or not isinstance(bias, int | float | np.floating):
        raise TypeError(f"sequence_bias gives {list(ids)} the bias {bias!r}; a bias is a number")
    if math.isnan(bias) or bias == math.inf:
        raise ValueError(f"sequence_bias gives {list(ids)} the bias {bias}; a bias is finite or -inf")
    return ids, float(bias)
