"""The output states of named layers of a decoder, for a distillation that compares features."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dew.nn.pipeline import active_stages

if TYPE_CHECKING:
    import jax
    from flax import linen as nn

    from dew.objectives.lm.decoder import Decoder

INTERMEDIATES = "intermediates"
"""The collection Linen captures outputs in."""


def check_layers(model: Decoder, layers: Sequence[int]) -> None:
    """Refuse layers the model does not have, and meshes on which no layer is called by its name.

    Raises:
        ValueError: naming the layer, and which there are.
    """
    count = getattr(model, "num_layers", None)
    if not layers:
        return
    if count is None:
        raise ValueError(
            f"layers={tuple(layers)!r} needs a model with num_layers and modules named layers_N; leave it out"
        )
    wrong = [layer for layer in layers if not 0 <= layer < count]
    if wrong:
        raise ValueError(f"layers names {wrong[0]}, and the model has layers 0 to {count - 1}")
    if active_stages() > 1:
        raise ValueError(
            f"layers={tuple(layers)!r}: on a mesh with stages each device group holds its own layers' states "
            "alone; set mesh.stage to 1"
        )


def capturing(layers: Sequence[int]) -> Callable[[nn.Module, str], bool]:
    """A filter for Linen's `capture_intermediates` that takes the outputs of `layers`."""
    wanted = {(f"layers_{layer}",) for layer in layers}
    return lambda module, method: method == "__call__" and module.path in wanted


def captured(sown: Mapping[str, Any], layers: Sequence[int]) -> tuple[jax.Array, ...]:
    """The states [B, S, D] that a capturing call kept, in the order of `layers`."""
    kept = sown.get(INTERMEDIATES, {})
    return tuple(kept[f"layers_{layer}"]["__call__"][0] for layer in layers)
