"""Walking a grid with a solver: `sample`, and guidance by a condition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {
        "CFG": "dew.sampling.images.config:dew-diffusion",
        "row_keys": "dew.sampling.images.draws:dew-diffusion",
        "row_noise": "dew.sampling.images.draws:dew-diffusion",
        "sample": "dew.sampling.images.trajectory:dew-diffusion",
    },
)

if TYPE_CHECKING:
    from dew.sampling.images.config import CFG as CFG
    from dew.sampling.images.draws import row_keys as row_keys
    from dew.sampling.images.draws import row_noise as row_noise
    from dew.sampling.images.trajectory import sample as sample
