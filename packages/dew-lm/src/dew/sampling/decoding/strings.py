"""End a row where its text comes to hold a string, decided on device from token ids alone.

What `StopStringCriteria` of transformers 5.16.1 finds: a token ends the row where, with those before it, it
completes a string. The string may overhang at both ends and may begin in the prompt; one that was complete
before the token is no reason to stop.

Dimensions: B rows, K strings, U units of the longest string, T tokens looked at, C classes of tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from dew.sampling.decoding.spelling import Vocabulary, vocabulary
from dew.sampling.decoding.state import StepState


@struct.dataclass
class StopStrings:
    """The compiled tables of `stop_strings`; tokens that fit the strings alike share a class, 0 fits none.

    Attributes:
        classes: `[vocab]`, the class of each token.
        widths: `[C]`, units of the class's tokens.
        ends: `[C, K, U]`, entry u - 1: the tokens' start covers exactly the last u units of the string; the
            last entry of a string also where they hold all of it.
        fits: `[C, K, U]`, entry u: the tokens' end lies u units before the string's end and they agree with
            the string, as far as it reaches.
        sizes: `[K]`, units of each string.
        strings: the strings.
    """

    classes: Any
    widths: Any
    ends: Any
    fits: Any
    sizes: Any
    strings: tuple[str, ...] = struct.field(pytree_node=False)

    def __call__(self, state: StepState, drawn: jax.Array, /) -> jax.Array:
        tokens, held = state.history()
        longest = self.ends.shape[2]
        places = held[:, None] - 1 - jnp.arange(longest)
        ids = jnp.take_along_axis(tokens, jnp.maximum(places, 0), axis=1)
        classes = jnp.where(places >= 0, jnp.take(self.classes, ids, mode="fill", fill_value=0), 0)
        return jnp.any(self.completed(classes), axis=-1)

    def completed(self, classes: jax.Array) -> jax.Array:
        """`[B, K]`, which strings the first of `classes` `[B, T]` completes, the newest token first.

        Every number of units that the newest token may cover is followed back by itself.
        """
        longest = self.ends.shape[2]
        covered = 1 + jnp.arange(longest)
        widths = jnp.asarray(self.widths)[classes[:, 1:]]
        behind = jnp.cumsum(widths, axis=1) - widths
        reached = covered + behind[:, :, None]
        fits = jnp.asarray(self.fits)[classes[:, 1:]]
        whole = reached[:, :, None, :] >= jnp.asarray(self.sizes)[:, None]
        at = jnp.broadcast_to(jnp.minimum(reached, longest - 1)[:, :, None, :], fits.shape)
        agrees = whole | jnp.take_along_axis(fits, at, axis=-1)
        unbroken = jnp.all(agrees, axis=1) & self._long_enough(covered, widths)
        return jnp.any(jnp.asarray(self.ends)[classes[:, 0]] & unbroken, axis=-1)

    def _long_enough(self, covered: jax.Array, widths: jax.Array) -> jax.Array:
        """`[B, K, U]`, whether the tokens together are as long as the string."""
        total = covered + jnp.sum(widths, axis=1)[:, None]
        return total[:, None, :] >= jnp.asarray(self.sizes)[:, None]


def stop_strings(
    tokenizer: object, strings: str | Sequence[str], vocab_size: int | None = None
) -> StopStrings:
    """A criterion that ends a row with the token that completes one of `strings`.

    One that begins in the prompt counts; the response then ends with the rest of it, which a text keeps.

    The tokenizer is read once, here. A byte-level or byte-fallback vocabulary is compared in UTF-8 bytes, so
    a character that two tokens share still counts; any other in characters.

    Args:
        tokenizer: one of Dew's, of the tokenizers library or of transformers, or a processor that holds one.
        strings: one string or several.
        vocab_size: ids of the model's head, where it is wider than the vocabulary; the ids beyond spell
            nothing.

    Raises:
        ValueError: no string, an empty one, or one that no token of the vocabulary can complete.
        TypeError: a tokenizer whose tokens cannot be read.
    """
    wanted = (strings,) if isinstance(strings, str) else tuple(strings)
    if not wanted or "" in wanted:
        raise ValueError(f"stop_strings={wanted!r} must hold strings of at least one character")
    known = vocabulary(tokenizer)
    spelled = [known.units(each) for each in wanted]
    longest = max(map(len, spelled))
    by_edge = edges(known)
    rows: dict[int, np.ndarray] = {}
    for index, string in enumerate(spelled):
        completes = False
        for token, kind, place in occurrences(known, by_edge, string):
            row = rows.setdefault(token, np.zeros((2, len(wanted), longest), bool))
            row[kind, index, place] = True
            completes |= kind == ENDS
        if not completes:
            raise ValueError(
                f"stop_strings holds {wanted[index]!r}, which no token of this vocabulary can complete"
            )
    return tabled(known, rows, wanted, [len(each) for each in spelled], vocab_size or 0)


ENDS, FITS = 0, 1


@dataclass(frozen=True)
class Edges:
    """The tokens by their first and by their last unit, and those that spell nothing."""

    starting: Mapping[Any, Sequence[int]]
    ending: Mapping[Any, Sequence[int]]
    empty: Sequence[int]


def edges(known: Vocabulary[Any]) -> Edges:
    """The tokens of a vocabulary by their edges."""
    starting: dict[Any, list[int]] = defaultdict(list)
    ending: dict[Any, list[int]] = defaultdict(list)
    for token, piece in known.pieces.items():
        if piece:
            starting[piece[0]].append(token)
            ending[piece[-1]].append(token)
    return Edges(starting, ending, [token for token, piece in known.pieces.items() if not piece])


def occurrences(known: Vocabulary[Any], found: Edges, string: Any) -> Iterator[tuple[int, int, int]]:
    """Where each token can sit in `string`: (token, ENDS, units covered - 1) or (token, FITS, units left)."""
    size = len(string)
    for token, piece in known.pieces.items():
        if len(piece) >= size and string in piece:
            yield token, ENDS, size - 1
    for covered in range(1, size):
        start, end = string[:-covered], string[-covered:]
        for token in found.empty:
            yield token, FITS, covered
        for token in found.starting.get(end[0], ()):
            if known.pieces[token].startswith(end):
                yield token, ENDS, covered - 1
        for token in found.ending.get(start[-1], ()):
            piece = known.pieces[token]
            if start.endswith(piece) or piece.endswith(start):
                yield token, FITS, covered


def tabled(
    known: Vocabulary[Any],
    rows: dict[int, np.ndarray],
    strings: tuple[str, ...],
    sizes: Sequence[int],
    vocab_size: int,
) -> StopStrings:
    """The tables, with one class for the tokens of equal width that fit alike."""
    classes = np.zeros(max(known.size, vocab_size), np.int32)
    members = {(0, b""): 0}
    kept: list[tuple[int, np.ndarray]] = [(0, np.zeros((2, len(strings), max(sizes)), bool))]
    for token, row in rows.items():
        width = len(known.pieces[token])
        number = members.setdefault((width, row.tobytes()), len(kept))
        if number == len(kept):
            kept.append((width, row))
        classes[token] = number
    table = np.stack([row for _, row in kept])
    return StopStrings(
        classes=classes,
        widths=np.asarray([width for width, _ in kept], np.int32),
        ends=table[:, ENDS],
        fits=table[:, FITS],
        sizes=np.asarray(sizes, np.int32),
        strings=strings,
    )
