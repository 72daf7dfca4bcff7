"""Rendered conversations packed into rows, as documents are, with a role beside every id."""

from __future__ import annotations

from typing import Literal

import numpy as np

from dew.data.chat.roles import Role
from dew.data.chat.store import ChatCounts, ChatStore
from dew.data.records import Records
from dew.data.tokens.packed import PackedRows
from dew.data.tokens.packing import PackingPlan
from dew.data.tokens.source import TokenBytes
from dew.data.tokens.windows import split_records

ROLES_KEY = "text_roles"
"""[S + 1], whose each token of a row is; values of `Role`."""

type TooLong = Literal["leave_out", "cut", "refuse"]


def chat_records(
    store: ChatStore,
    *,
    seq_len: int,
    seed: int,
    val_rows: int | None,
    too_long: TooLong,
    vocab_size: int,
) -> Records:
    """Shuffled rows of the training conversations, new each epoch, and those of validation in plan order.

    Args:
        store: the conversations.
        seq_len: S, predictions in a row.
        seed: of the shuffle.
        val_rows: at most this many validation rows, spread evenly; None takes all.
        too_long: what is done with a text of more than S + 1 ids.
        vocab_size: ids lie below it.

    Raises:
        ValueError: no training text fits, or one is too long and `too_long` is `refuse`.
    """
    plans: dict[str, PackingPlan] = {}
    told: list[str] = []
    kinds: dict[str, frozenset[str]] = {}
    for split, counts in store.counts.items():
        if split == "val" and not counts.conversations:
            told.append(held_out_none(store))
            continue
        kept, lengths, long, speakers = fitting(store, split, seq_len, too_long)
        kinds[split] = frozenset(role.name.lower() for role, count in speakers.items() if count)
        short = counts.texts - len(kept) - (0 if too_long == "cut" else long)
        plan = PackingPlan.placing(kept, lengths, seq_len=seq_len)
        fate = {"leave_out": "left out", "cut": f"cut after {seq_len + 1}", "refuse": ""}[too_long]
        told.append(
            f"{split}: {counts.conversations} conversations in {counts.texts} texts, {len(plan)} rows; "
            f"{long} of more than {seq_len + 1} ids {fate}".rstrip()
            + f"; {short} of fewer than 2 left out"
            + f"; {counts.split} taken apart; texts with targets of the "
            + ", ".join(f"{role.name.lower()}: {count}" for role, count in speakers.items())
        )
        if split == "train" and not len(plan):
            raise ValueError(_nothing_fits(store, seq_len, long, counts))
        if len(plan):
            plans[split] = plan
    rows = {split: _rows(store, split, plan, seq_len, vocab_size) for split, plan in plans.items()}
    return split_records(
        rows,
        seed=seed,
        most=val_rows,
        identity={
            "chat": store.meta.digest,
            "roles": store.roles,
            "tokenizer": store.meta.tokenizer_fingerprint,
            "seq_len": seq_len,
            "seed": seed,
            "packing": plans["train"].digest(),
        },
        description=tuple(told),
        kinds=kinds,
    )


def held_out_none(store: ChatStore) -> str:
    """The line on a share for validation that no record fell into."""
    count = store.counts["train"].conversations
    return f"val: data.val_fraction holds out none of {count} records, by their hashes; raise it"


def _nothing_fits(store: ChatStore, seq_len: int, long: int, counts: ChatCounts) -> str:
    if not counts.conversations:
        return "no conversation is left to train on; lower data.val_fraction, or name others as data.path"
    if not long:
        return (
            f"each of the {counts.texts} texts has fewer than 2 ids, so that none predicts another; see what "
            "the chat template (or data.template) writes of a message"
        )
    return (
        f"none of the {counts.texts} texts has 2 to {seq_len + 1} ids; raise data.seq_len or set "
        "data.too_long to cut"
    )


def fitting(
    store: ChatStore, split: str, seq_len: int, too_long: TooLong
) -> tuple[np.ndarray, np.ndarray, int, dict[Role, int]]:
    """First id and length of the texts that are kept, the too long, and those with targets of each role.

    Raises:
        ValueError: one is, and `too_long` is `refuse`.
    """
    bounds = store.bounds(split)
    starts, lengths = bounds[:-1], np.diff(bounds)
    long = lengths > seq_len + 1
    if too_long == "refuse" and long.any():
        raise ValueError(
            f"text {int(np.flatnonzero(long)[0])} of the {split} split has {int(lengths[long][0])} ids, and "
            f"data.seq_len={seq_len} has room for {seq_len + 1} ({int(long.sum())} of {len(lengths)} are too "
            "long); raise data.seq_len, or set data.too_long to leave_out or cut"
        )
    kept = lengths > 1 if too_long == "cut" else (lengths > 1) & ~long
    shown = np.minimum(lengths[kept], seq_len + 1)
    spoken = (store.first_targets(split)[kept] < shown[:, None]).sum(0)
    speakers = {role: int(spoken[role]) for role in Role if role != Role.TEMPLATE}
    return starts[kept], shown, int(long.sum()), speakers


def _rows(store: ChatStore, split: str, plan: PackingPlan, seq_len: int, vocab_size: int) -> PackedRows:
    ids = TokenBytes(store.directory / f"{split}.bin", store.meta.dtype)
    roles = TokenBytes(store.directory / f"{split}.roles", "uint8")
    return PackedRows(ids, plan, seq_len, vocab_size, beside={ROLES_KEY: roles})
