"""The sizes of a decoder that its run decides: the tokenizer's ids, and the longest row. No JAX at import."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from dew.config import ModelConfig

if TYPE_CHECKING:
    from dew.data.text import Tokenizer


def with_sizes(
    model: ModelConfig,
    tokenizer: Tokenizer,
    name: str,
    *,
    needed: int,
    needs: str,
    unset: int | None = None,
    published: str | None = None,
) -> ModelConfig:
    """`model` with the vocabulary and the longest row written into its fields.

    Args:
        model: a decoder's configuration; sizes it names itself are kept.
        tokenizer: makes the ids.
        name: of the tokenizer as the run was given it, for the message.
        needed: ids of the longest row.
        needs: what is so long, for the message.
        unset: `max_seq_len` where the configuration names none; None takes `needed`.
        published: where the model was published, for the message.

    Raises:
        ValueError: the model's own sizes do not fit.
    """
    sizes = dict(model.config)
    vocab = sizes.setdefault("vocab_size", tokenizer.vocab_size)
    # A table may have more rows than there are ids, as published ones do; every byte is an id.
    enough = isinstance(vocab, int) and vocab >= tokenizer.vocab_size
    if not enough or (name == "byte" and vocab != tokenizer.vocab_size):
        if published is not None:
            raise ValueError(
                f"tokenizer={name!r} makes {tokenizer.vocab_size} ids, and pretrained={published} was "
                f"trained on {vocab} of another; set --tokenizer to the folder of its own"
            )
        raise ValueError(
            f"model.config vocab_size={vocab} is not the {tokenizer.vocab_size} ids of tokenizer {name!r}; "
            "leave vocab_size out of model.config"
        )
    longest = sizes.setdefault("max_seq_len", needed if unset is None else unset)
    if isinstance(longest, int) and longest < needed:
        raise ValueError(
            f"model.config max_seq_len={longest} is shorter than {needs}; raise the one or lower the other"
        )
    return dataclasses.replace(model, config=sizes)
