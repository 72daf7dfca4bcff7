"""The attention logits a decoder reports, for QK-Clip (arXiv 2507.20534, section 2.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from dew.nn.backbones.causal_transformer.spec import QK as QK
from dew.objectives.base import Variables
from dew.training.observations import MAXIMA, STILL

if TYPE_CHECKING:
    from dew.nn.backbones.causal_transformer.mixers import MLA
    from dew.objectives.lm.decoder import Decoder


def check_clippable(model: Decoder) -> None:
    """Refuse a decoder whose logits do not follow its query and key kernels.

    Raises:
        ValueError: queries and keys are normalized after their projection.
    """
    norm = getattr(model, "qk_norm", False)
    if norm:
        raise ValueError(
            f"qk_stats=True is for QK-Clip, which scales query and key kernels, and with qk_norm={norm!r} "
            "the norms behind them undo that; set qk_norm=False, or optim.optimizer to 'muon'"
        )


def logits_of(sown: Variables, mixer: MLA | None = None) -> Variables:
    """The largest logits that a forward pass reported, nested by module path, as `Aux.qk_stats` holds them.

    Args:
        sown: the collections that came back.
        mixer: of the model.

    Raises:
        ValueError: the model reported none.
    """
    if not sown.get(QK):
        raise ValueError(
            f"qk_stats=True needs a model whose attention layers sow max_logits into {QK!r}; set it to False"
        )
    if mixer is None:
        return sown[QK]
    flat = cast("dict[tuple[str, ...], Any]", flatten_dict(cast("dict[str, Any]", sown[QK])))
    still = {(*path[:-1], STILL): jnp.asarray(mixer.qk_nope_head_dim, jnp.int32) for path in flat}
    return cast("Variables", unflatten_dict(flat | still))


def largest_logit(qk_stats: Variables) -> jax.Array:
    """The largest logit of all layers, heads and rows."""
    flat = cast("dict[tuple[str, ...], Any]", flatten_dict(cast("dict[str, Any]", qk_stats)))
    return jnp.max(jnp.stack([jnp.max(leaf[0]) for path, leaf in flat.items() if path[-1] == MAXIMA]))
