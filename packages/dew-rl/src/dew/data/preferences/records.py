"""Pairs of texts as token rows with explicit masks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import grain
import numpy as np
from jaxtyping import Int

from dew.data.config import IN_PROCESS, Loading
from dew.data.dataset import Dataset
from dew.data.preferences.sums import Pair
from dew.data.text import Tokenizer
from dew.objectives.rl.pairs import CHOSEN_KEY, CHOSEN_MASK_KEY, REJECTED_KEY, REJECTED_MASK_KEY

type Record = dict[str, Int[np.ndarray, " S"]]


def pair_dataset(
    training: Sequence[Pair],
    validation: Sequence[Pair],
    tokenizer: object,
    *,
    seq_len: int,
    end: str,
    batch: int,
    seed: int,
    name: str,
    loading: Loading = IN_PROCESS,
) -> Dataset:
    """A dataset over pairs, shuffled anew in each pass of training; validation reads them in order.

    Args:
        training: at least one pair.
        validation: none gives no validation pass.
        tokenizer: makes the ids.
        seq_len: predictions a row; a row holds one id more.
        end: the text that ends every response and is part of it.
        batch: pairs in a global batch.
        seed: of the shuffle.
        name: what the pairs are called; a resumed run compares it, their texts' digest and the tokenizer.
        loading: concurrency.

    Raises:
        TypeError: `tokenizer` is none.
        ValueError: a pair that does not fit, as in `pair_records`.
    """
    if not isinstance(tokenizer, Tokenizer):
        raise TypeError(f"tokenize={tokenizer!r} must be the run's tokenizer: pairs are read as ids")
    rows, held = (
        pair_records(pairs, tokenizer, seq_len=seq_len, end=end) for pairs in (training, validation)
    )
    return Dataset.from_grain(
        grain.MapDataset.source(rows).seed(seed).shuffle(),
        batch=batch,
        validation=grain.MapDataset.source(held) if held else None,
        loading=loading,
        fingerprint={
            "pairs": name,
            "digest": _digest([*training, *validation]),
            "tokenizer": tokenizer.fingerprint(),
            "seed": seed,
        },
    )


def pair_records(pairs: Sequence[Pair], tokenizer: Tokenizer, *, seq_len: int, end: str) -> list[Record]:
    """The ids and masks of each pair.

    Prompt and response are encoded apart, so both rows of a pair have the prompt's ids alike.

    Raises:
        ValueError: a pair that makes more than `seq_len` + 1 ids, a prompt without an id, or a response
            that with `end` makes none.
    """
    records: list[Record] = []
    for pair in pairs:
        prompt = tokenizer.encode(pair.prompt)
        chosen, chosen_mask = packed_row(prompt, tokenizer.encode(pair.chosen + end), seq_len, pair.prompt)
        rejected, rejected_mask = packed_row(
            prompt, tokenizer.encode(pair.rejected + end), seq_len, pair.prompt
        )
        records.append(
            {
                CHOSEN_KEY: chosen,
                CHOSEN_MASK_KEY: chosen_mask,
                REJECTED_KEY: rejected,
                REJECTED_MASK_KEY: rejected_mask,
            }
        )
    return records


def packed_row(
    prompt: Sequence[int], response: Sequence[int], seq_len: int, said: str
) -> tuple[Int[np.ndarray, " S1"], Int[np.ndarray, " S"]]:
    """One row's ids, filled with zeros, and the mask of its response's targets.

    Raises:
        ValueError: as in `pair_records`; the message quotes `said`.
    """
    if not prompt or not response:
        empty = "prompt" if not prompt else "response"
        raise ValueError(f"a pair with prompt {said!r} has a {empty} without an id; give it at least one")
    used = len(prompt) + len(response)
    if used > seq_len + 1:
        raise ValueError(
            f"a pair with prompt {said!r} makes {used} ids, and data.seq_len={seq_len} has room for "
            f"{seq_len + 1}; use --data.seq-len {used - 1} or more"
        )
    row = np.zeros(seq_len + 1, np.int32)
    row[:used] = [*prompt, *response]
    mask = np.zeros(seq_len, np.int32)
    mask[len(prompt) - 1 : used - 1] = 1
    return row, mask


def _digest(pairs: Sequence[Pair]) -> str:
    said = "\0".join(part for pair in pairs for part in (pair.prompt, pair.chosen, pair.rejected))
    return hashlib.blake2b(said.encode(), digest_size=16).hexdigest()
