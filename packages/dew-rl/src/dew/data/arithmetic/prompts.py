"""Prompts as the token rows that a rollout continues."""

from __future__ import annotations

from collections.abc import Sequence

import grain
import numpy as np
from jaxtyping import Int

from dew.data.config import IN_PROCESS, Loading
from dew.data.dataset import Dataset
from dew.data.text import Tokenizer
from dew.objectives.rl.batch import PROMPT_KEY, PROMPT_MASK_KEY

type Record = dict[str, Int[np.ndarray, " P"]]


def prompt_dataset(
    prompts: Sequence[str],
    tokenizer: object,
    *,
    batch: int,
    seed: int,
    name: str,
    loading: Loading = IN_PROCESS,
) -> Dataset:
    """A dataset over `prompts`, shuffled anew in each pass of training; validation reads them in order.

    A record holds the ids, filled with zeros to the longest prompt, and the mask of the real ones.

    Args:
        prompts: the texts.
        tokenizer: makes their ids.
        batch: prompts in a global batch.
        seed: of the shuffle.
        name: what a resumed run compares, beside the prompts' number, the tokenizer and the seed.
        loading: concurrency.

    Raises:
        TypeError: `tokenizer` is none.
        ValueError: no prompt, or one that makes no id.
    """
    if not isinstance(tokenizer, Tokenizer):
        raise TypeError(f"tokenize={tokenizer!r} must be the run's tokenizer: prompts are read as ids")
    records = prompt_records(prompts, tokenizer)
    source = grain.MapDataset.source(records)
    return Dataset.from_grain(
        source.seed(seed).shuffle(),
        batch=batch,
        validation=source,
        loading=loading,
        fingerprint={"prompts": name, "tokenizer": tokenizer.fingerprint(), "seed": seed},
    )


def prompt_records(prompts: Sequence[str], tokenizer: Tokenizer) -> list[Record]:
    """The ids and the mask of each prompt, at one width.

    Raises:
        ValueError: no prompt, or one that makes no id.
    """
    rows = [tokenizer.encode(prompt) for prompt in prompts]
    if not rows or not all(rows):
        which = f"prompt {prompts[rows.index([])]!r} makes no id" if rows else "there is no prompt"
        raise ValueError(f"{which}; every prompt needs one id to continue from")
    width = max(map(len, rows))
    return [
        {
            PROMPT_KEY: np.asarray([*row, *[0] * (width - len(row))], np.int32),
            PROMPT_MASK_KEY: (np.arange(width) < len(row)).astype(np.int32),
        }
        for row in rows
    ]
