"""Whether the data of a run holds targets of the role it trains. Importing it imports no JAX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dew.data.chat.config import ChatMessages
from dew.data.chat.roles import RoleName


def refuse_other_roles(loss_role: RoleName, parts: Sequence[object]) -> None:
    """Refuse data whose configuration says that no token of it is `loss_role`'s.

    Args:
        loss_role: the role that is trained.
        parts: the specifications of the data; several of a mixture.

    Raises:
        ValueError: one that does not say whose its tokens are, or says that all are another role's.
    """
    mixed = len(parts) > 1
    for index, part in enumerate(parts):
        if isinstance(part, ChatMessages):
            continue
        role: object = getattr(part, "role", None)
        if role is None:
            raise ValueError(
                f"loss_role={loss_role!r} needs data that says whose each token is: data:chat-messages, or "
                "token data with data.role; leave it out to train on everything"
            )
        if role != loss_role:
            place = f"data.parts[{index}].data.role" if mixed else "data.role"
            raise ValueError(
                f"loss_role={loss_role!r} trains nothing of data whose every token is of {place}={role!r}; "
                f"set {place} to {loss_role!r}" + (", or leave the part out" if mixed else "")
            )


def refuse_missing_role(loss_role: RoleName, kinds: Mapping[str, frozenset[str]], *, evaluates: bool) -> None:
    """Refuse opened data that holds no target of `loss_role`.

    Args:
        loss_role: the role that is trained.
        kinds: of the dataset (`Dataset.kinds`); a split that it does not name is not known.
        evaluates: whether the run scores the validation split.

    Raises:
        ValueError: the training split holds none, or the validation split of a run that evaluates.
    """
    needed = {"train": "set loss_role to one of these, or leave it out to train on everything"}
    if evaluates:
        needed["val"] = "hold out others, or set trainer.eval_every to None"
    for split, remedy in needed.items():
        if split in kinds and loss_role not in kinds[split]:
            found = ", ".join(sorted(kinds[split])) or "nobody"
            raise ValueError(
                f"loss_role={loss_role!r} has no target in the {split} split: what fits its rows is said by "
                f"{found}; {remedy}"
            )
