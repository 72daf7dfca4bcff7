"""The configuration of a diffusion run. Importing it imports no JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from dew.config import ModelConfig, OptimConfig, RunConfig, TrainerConfig
from dew.config.unbuilt import refuse_unbuilt
from dew.data.images.config import Digits, ImageSpec, OxfordFlowers
from dew.diffusion.presets import EDM, Flow, PresetSpec
from dew.objectives.diffusion.condition import TextCondition
from dew.plugins.known import SHIPPED_BY
from dew.registry import DtypeName, metrics, models
from dew.sampling.images.config import CFG
from dew.sampling.solvers.base import SamplerSpec
from dew.sampling.solvers.first_order import EulerAncestral
from dew.sampling.solvers.multistep import DPMSolverPP
from dew.training.optim.config import Cosine

if TYPE_CHECKING:
    from dew.inputs.spec import Condition, Field
    from dew.objectives.base import Metric, Variables
    from dew.objectives.diffusion.objective import DiffusionObjective

DEFAULT_MODEL_CONFIG: Mapping[str, Any] = {
    "channels": [64, 128, 256, 256],
    "blocks": 2,
    "attention": [False, False, True, True],
    "num_heads": 4,
    "condition_size": 256,
}
"""The U-Net of a plain configuration, for images of 64 pixels and more."""

MOST_PATCHES = 8
"""Patches along a side at most, where the configuration leaves the patch size to the data."""

UNBUILT: Mapping[str, tuple[tuple[object, ...], str]] = {
    "objective": (("diffusion",), "use diffusion"),
}
"""Field -> the values that work, and what to do instead of the others."""


@dataclass(frozen=True)
class StableDiffusionAutoencoder:
    """The variational autoencoder of Stable Diffusion, for latent diffusion; not built yet.

    Attributes:
        modelname: repository of its weights.
        revision: the repository's git revision.
        dtype: what it computes in.
        latent_shift: subtracted from latents; unset is the checkpoint's own.
        latent_scale: multiplies latents; unset is the checkpoint's own.
    """

    modelname: str = "pcuenq/sd-vae-ft-mse-flax"
    revision: str = "bf16"
    dtype: DtypeName = "bfloat16"
    latent_shift: float | None = None
    latent_scale: float | None = None

    def build(self, *, params: Variables | None = None) -> Any:
        """Refuse: this version trains in pixel space.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            f"autoencoder={type(self).__name__}: latent diffusion is not supported in this version; use "
            "autoencoder:none to train in pixel space"
        )


@dataclass(frozen=True)
class DiffusionRunConfig(RunConfig):
    """Train a diffusion model on images; it follows the data. An unset patch_size of model.config becomes the
    least divisor of the image's side, from 2 on, that leaves at most 8 patches along it (8 pixels: 2, 28: 4,
    64: 8). Classes come from the data too, and images without classes train an unconditional model.

    Attributes:
        model: the denoiser, simple_dit or unet.
        data: the images.
        objective: `diffusion`.
        preset: the process: noise, target, weights and training times.
        sampler: solver that samples are drawn with.
        guidance: how samples are guided; none draws from the conditional prediction alone.
        sampling_steps: evaluations in a sample.
        unconditional_prob: part of the training rows whose condition is dropped.
        ema_decay: of the moving average of the parameters; None keeps none, 1 a frozen copy.
        text: the condition; none trains without one.
        autoencoder: of latent diffusion. Not supported yet.
        val_metrics: registered metrics of a validation pass.

    Raises:
        ValueError: a value that is not supported, a number out of its range, or a metric nobody registers.
    """

    model: ModelConfig = field(default_factory=lambda: ModelConfig("unet", dict(DEFAULT_MODEL_CONFIG)))
    data: ImageSpec = field(default_factory=OxfordFlowers)
    optim: OptimConfig = field(default_factory=OptimConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    objective: str | None = "diffusion"
    preset: PresetSpec = field(default_factory=EDM)
    sampler: SamplerSpec = field(default_factory=EulerAncestral)
    guidance: CFG | None = field(default_factory=lambda: CFG(3.0))
    sampling_steps: int = 200
    unconditional_prob: float = 0.12
    ema_decay: float | None = 0.999
    text: TextCondition | None = field(default_factory=TextCondition)
    autoencoder: StableDiffusionAutoencoder | None = None
    val_metrics: tuple[str, ...] = ("clip",)

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_unbuilt(self, UNBUILT)
        if self.sampling_steps < 1:
            raise ValueError(f"sampling_steps={self.sampling_steps} must be at least 1")
        if not 0 <= self.unconditional_prob <= 1:
            raise ValueError(f"unconditional_prob={self.unconditional_prob} must lie in [0, 1]")
        if self.ema_decay is not None and not 0 <= self.ema_decay <= 1:
            raise ValueError(f"ema_decay={self.ema_decay} must lie in [0, 1], or be None for no average")
        for name in self.val_metrics:
            if name not in metrics and ("metric", name) not in SHIPPED_BY:
                metrics.component(name)

    @classmethod
    def starting_point(cls) -> Self:
        """A small transformer that draws handwritten digits of every class after minutes on a laptop."""
        return cls(
            model=ModelConfig(
                "simple_dit", config={"hidden_size": 96, "num_layers": 4, "num_heads": 4}, dtype="float32"
            ),
            data=Digits(),
            optim=OptimConfig(
                optimizer="muon",
                learning_rate=4e-3,
                schedule=Cosine(warmup_updates=100, end_factor=0.02),
                weight_decay=0.05,
            ),
            trainer=TrainerConfig(
                batch_size=32, steps=2000, log_every=40, eval_every=400, checkpoint_every=1000
            ),
            preset=Flow(),
            sampler=DPMSolverPP(),
            guidance=CFG(3.0),
            sampling_steps=25,
            unconditional_prob=0.1,
            ema_decay=0.995,
            text=TextCondition(encoder="labels", field="label"),
            val_metrics=(),
        )

    @property
    def parameter_roots(self) -> tuple[tuple[str, ...], ...]:
        """The subtrees of the variables that the optimizer moves."""
        return (("params",),)

    def sample_field(self) -> Field:
        """The batch field that is modelled, at the size the data has."""
        from dew.inputs.spec import Field

        return Field("image", self.data.image_shape)

    def model_fields(self, autoencoder: object = None) -> dict[str, Any]:
        """The fields the model is built from: precision settings, `model.config`, and what follows the data.

        Args:
            autoencoder: None; latent diffusion is not supported yet.

        Raises:
            ValueError: an autoencoder, channels that are not the data's, or sides no patch size fits.
        """
        import inspect

        if autoencoder is not None:
            raise ValueError("autoencoder: latent diffusion is not supported in this version; leave it None")
        fields = dict(self.model.fields())
        declared = inspect.signature(models.get(self.model.architecture)).parameters
        height, width, channels = self.sample_field().shape
        if fields.setdefault("output_channels", channels) != channels:
            raise ValueError(
                f"model.config output_channels={fields['output_channels']} is not the {channels} channels of "
                "the data; leave it out"
            )
        if "output_channels" not in declared:
            del fields["output_channels"]
        if "patch_size" in declared and "patch_size" not in fields:
            fields["patch_size"] = patch_size(height, width)
        return fields

    def resolved(self) -> Self:
        """This configuration with what follows the data written into it; its record then rebuilds the run.

        Raises:
            ValueError: the model's own values do not fit the data.
        """
        settings = self.model.precision_settings()
        fields = {name: value for name, value in self.model_fields().items() if name not in settings}
        model = dataclasses.replace(self.model, config=fields)
        return dataclasses.replace(self, model=model, text=self._text())

    def build(self, *, variables: Variables | None = None) -> DiffusionObjective:
        """The objective this configuration describes.

        Args:
            variables: start from this complete tree.

        Raises:
            ValueError: a part that is not supported yet, or sizes that do not fit the data.
            UnknownComponent: an encoder or a metric that is not installed.
        """
        from dew.inputs.spec import InputSpec
        from dew.objectives.diffusion.objective import DiffusionObjective

        if self.autoencoder is not None:
            self.autoencoder.build()
        for name in self.val_metrics:
            metrics.component(name)
        config = self.resolved()
        return DiffusionObjective(
            config.model.build(),
            self.preset.build(),
            InputSpec(self.sample_field(), config._conditions()),
            unconditional_prob=self.unconditional_prob,
            ema_decay=self.ema_decay,
            sampler=self.sampler,
            guidance=self.guidance,
            steps=self.sampling_steps,
            pretrained=variables,
        )

    def build_eval_metrics(self) -> list[Metric[Any]]:
        """The metrics of `val_metrics`.

        Raises:
            UnknownComponent: one that is not installed.
            ValueError: one that cannot score images of the data's size.
        """
        from dew.eval.images.pairs import PairedMetric

        built = [metrics.build(name) for name in self.val_metrics]
        height, width, _ = self.sample_field().shape
        for metric in built:
            if isinstance(metric, PairedMetric):
                metric.check_sides(height, width)
        return built

    def _text(self) -> TextCondition | None:
        if self.text is None or self.text.encoder != "labels" or self.text.classes:
            return self.text
        names = self.data.class_names
        return None if names is None else dataclasses.replace(self.text, classes=names)

    def _conditions(self) -> dict[str, Condition]:
        if self.text is None:
            return {}
        return {"textcontext": self.text.build(dtype=self.model.dtype)}


def patch_size(height: int, width: int) -> int:
    """The least patch side, from 2 on, that divides both sides and leaves at most 8 patches along the longer.

    Raises:
        ValueError: no side does.
    """
    for side in range(2, min(height, width)):
        if height % side == 0 and width % side == 0 and max(height, width) // side <= MOST_PATCHES:
            return side
    raise ValueError(
        f"images of {height}x{width} pixels cannot be cut into at most {MOST_PATCHES} patches along a side; "
        "set data.image_size to a multiple of 8, or patch_size in model.config"
    )
