"""The configuration of a joint-embedding run. Importing it imports no JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from dew.config import DataSpec, ModelConfig, OptimConfig, RunConfig, TrainerConfig
from dew.config.arguments import JsonDict
from dew.config.unbuilt import refuse_unbuilt
from dew.data.images.config import Textures
from dew.objectives.jepa.mask_config import MultiBlock
from dew.training.optim.config import Cosine

if TYPE_CHECKING:
    from dew.objectives.base import Variables
    from dew.objectives.jepa.objective import JepaObjective

UNBUILT: Mapping[str, tuple[tuple[object, ...], str]] = {"objective": (("jepa",), "use jepa")}


@dataclass(frozen=True)
class JepaRunConfig(RunConfig):
    """A run of I-JEPA on images.

    Attributes:
        model: the encoder.
        data: the images.
        objective: `jepa`.
        predictor: the network that predicts hidden features.
        mask: what is hidden.
        momentum: decay of the target encoder at the first update and after momentum_steps of them.
        momentum_steps: updates over which it goes from the one to the other.
        label_key: field of a batch with the labels that probes read.
        flip: mirror training images at random along both sides.
        probe_rows: training images that probes are fitted on; unset takes all, 0 leaves the probes out.

    Raises:
        ValueError: a value that is not supported, a momentum outside [0, 1] or of no step, or a negative
            number of rows.
    """

    model: ModelConfig = field(default_factory=lambda: ModelConfig("vit_jepa"))
    data: DataSpec = field(default_factory=Textures)
    optim: OptimConfig = field(
        default_factory=lambda: OptimConfig(learning_rate=1e-3, weight_decay=0.05, clip_grads=1.0)
    )
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    objective: str | None = "jepa"
    predictor: ModelConfig = field(default_factory=lambda: ModelConfig("vit_jepa_predictor"))
    mask: MultiBlock = field(default_factory=MultiBlock)
    momentum: tuple[float, float] = (0.996, 1.0)
    momentum_steps: int = 100000
    label_key: str = "label"
    flip: bool = False
    probe_rows: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_unbuilt(self, UNBUILT)
        check_momentum(self.momentum, self.momentum_steps)
        if self.probe_rows is not None and self.probe_rows < 0:
            raise ValueError(f"probe_rows={self.probe_rows} must be 0 or more, or unset for all")

    @classmethod
    def starting_point(cls) -> Self:
        """A small encoder that tells textures apart after minutes on a laptop's processor."""
        # A texture is the same all over, so the encoder's patches carry no place (the predictor's do), and
        # layers that add nothing yet leave at the start what a linear map of a patch tells.
        encoder: JsonDict = {"patch_size": 4, "hidden_size": 192, "num_layers": 2, "num_heads": 4}
        start: JsonDict = {"position_scale": 0.0, "residual_gain": 0.001}
        predictor: JsonDict = {"hidden_size": 32, "num_layers": 2, "num_heads": 4}
        return cls(
            model=ModelConfig("vit_jepa", config={**encoder, **start}, dtype="float32"),
            data=Textures(),
            optim=OptimConfig(
                learning_rate=5e-4,
                schedule=Cosine(warmup_updates=80, end_factor=0.01),
                weight_decay=0.05,
                clip_grads=1.0,
            ),
            trainer=TrainerConfig(
                batch_size=64, steps=450, log_every=20, eval_every=150, checkpoint_every=150
            ),
            predictor=ModelConfig("vit_jepa_predictor", config=predictor, dtype="float32"),
            mask=MultiBlock(target_scale=(0.1, 0.2), context_tokens=16),
            momentum=(0.996, 1.0),
            momentum_steps=450,
            flip=True,
        )

    def build(self, *, variables: Variables | None = None) -> JepaObjective:
        """The objective this configuration describes.

        Args:
            variables: refused; an encoder starts from its own initial weights here.

        Raises:
            ValueError: given variables, data of unknown shape, or sizes that do not fit each other.
        """
        from dew.inputs.spec import Field
        from dew.objectives.jepa.objective import JepaObjective

        if variables is not None:
            raise ValueError(
                "variables: a joint-embedding run starts from its own initial weights; leave it None"
            )
        shape = self.image_shape()
        encoder = self.encoder().build()
        sizes = {"grid": encoder.grid, "features": encoder.features}
        predictor = completed(self.predictor, sizes, "the encoder's", "predictor").build()
        return JepaObjective(
            encoder,
            predictor,
            self.mask.build(encoder.grid),
            Field("image", shape),
            momentum=self.momentum,
            momentum_steps=self.momentum_steps,
            label_key=self.label_key,
            flip=self.flip,
        )

    def encoder(self) -> ModelConfig:
        """The encoder's configuration with the images' size in it.

        Raises:
            ValueError: the configured size is another.
        """
        height, width, channels = self.image_shape()
        sizes = {"image_size": (height, width), "channels": channels}
        return completed(self.model, sizes, "the data's", "model")

    def image_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of an image.

        Raises:
            ValueError: the data does not say.
        """
        shape = getattr(self.data, "image_shape", None)
        if not (isinstance(shape, tuple) and len(shape) == 3):
            raise ValueError(
                f"data={type(self.data).__name__} has no image_shape; use a dataset of images, as "
                "data:textures"
            )
        return shape


def check_momentum(momentum: tuple[float, float], momentum_steps: int) -> None:
    """Refuse a line that is no momentum.

    Raises:
        ValueError: an end outside [0, 1], or no step.
    """
    if not all(0 <= bound <= 1 for bound in momentum):
        raise ValueError(f"momentum={momentum} must be two decays in [0, 1]")
    if momentum_steps < 1:
        raise ValueError(f"momentum_steps={momentum_steps} must be at least 1")


def completed(model: ModelConfig, sizes: Mapping[str, Any], whose: str, field_name: str) -> ModelConfig:
    """`model` with `sizes` in its fields.

    Raises:
        ValueError: a field has another value already.
    """
    fields = dict(model.config)
    for name, value in sizes.items():
        given = fields.setdefault(name, list(value) if isinstance(value, tuple) else value)
        if (tuple(given) if isinstance(given, list | tuple) else given) != value:
            raise ValueError(
                f"{field_name}.config {name}={given!r} is not {whose} {value}; leave it out of "
                f"{field_name}.config"
            )
    return dataclasses.replace(model, config=fields)
