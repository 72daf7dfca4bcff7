"""What `dew generate` asks of a diffusion model. Importing it imports no JAX."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from dew.registry import samplers
from dew.sampling.images.config import CFG

if TYPE_CHECKING:
    import jax

    from dew.config import RunConfig
    from dew.inference.images.task import TextToImage

TOGETHER = 64
"""Images that are drawn at once."""


@dataclass(frozen=True)
class ImageOptions:
    """Draw images with a trained diffusion model and write them as PNG files.

    Attributes:
        prompts: What to draw, as the names of classes; unset draws one of every class.
        out: Folder the files are written into; files of the same names are replaced.
        n: Images for each prompt; the first is the same whatever their number.
        guidance: Guidance scale; 1 draws from the conditional prediction alone, which is all a run without
            conditions does. The default is the run's.
        interval: Least and greatest sigma / alpha that are guided; unset guides everywhere.
        steps: Evaluations of an image; the default is the run's.
        sampler: Registered name of the solver; unset takes the run's own.

    Raises:
        ValueError: a number below 1, a guidance that is not finite, or a sampler nobody registers.
    """

    prompts: tuple[str, ...] = ()
    out: str = "images"
    n: int = 1
    guidance: float = 1.0
    interval: tuple[float, float] | None = None
    steps: int = 50
    sampler: str | None = None

    positional: ClassVar[tuple[str, ...]] = ("prompts",)

    def __post_init__(self) -> None:
        for name in ("n", "steps"):
            value: int = getattr(self, name)
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        if not self.out:
            raise ValueError("out='' names no folder; give one for the files")
        CFG(self.guidance, self.interval)
        if self.sampler is not None:
            samplers.component(self.sampler)

    @classmethod
    def of_run(cls, config: RunConfig) -> Self:
        """The options as a run's own configuration has them."""
        own = getattr(config, "guidance", None)
        conditioned = getattr(config, "text", None) is not None
        guidance = own if isinstance(own, CFG) and conditioned else CFG(1.0)
        return cls(
            guidance=guidance.scale,
            interval=guidance.interval,
            steps=getattr(config, "sampling_steps", cls.steps),
        )

    def respond(self, task: TextToImage, *, seed: int) -> Iterator[str]:
        """Draw, write, and say where each file is.

        Image j of prompt i draws by `fold_in(fold_in(key(seed), i), j)`: what is drawn together, and how
        many more there are, does not change it.

        Raises:
            ValueError: prompts for a model without captions, or a prompt it does not know.
            OSError: the folder cannot be written to.
        """
        prompts = self.prompts or every_caption(task)
        captions = [caption for caption in prompts for _ in range(self.n)]
        keys = image_keys(seed, max(1, len(prompts)), self.n)
        solver = None if self.sampler is None else samplers.build(self.sampler)
        for first in range(0, len(keys), TOGETHER):
            drawn = task(
                captions[first : first + TOGETHER] or len(keys[first : first + TOGETHER]),
                key=keys[first : first + TOGETHER],
                steps=self.steps,
                guidance=CFG(self.guidance, self.interval),
                sampler=solver,
            )
            for path in drawn.written(self.out, first=first):
                yield f"{path}\n"


def every_caption(task: TextToImage) -> tuple[str, ...]:
    """The captions a condition names as examples; none for a model without conditions.

    Raises:
        ValueError: the model is told what to draw, and its encoder names no examples.
    """
    for condition in task.inputs.conditions.values():
        captions = tuple(getattr(condition.encoder, "examples", ()))
        if not captions:
            raise ValueError("prompts is empty, and this model draws what it is told; give a prompt")
        return captions
    return ()


def image_keys(seed: int, prompts: int, n: int) -> jax.Array:
    """The key of every image `[prompts * n]`, the images of a prompt together."""
    import jax
    import jax.numpy as jnp

    from dew.sampling.images import row_keys

    def of_prompt(key: jax.Array) -> jax.Array:
        return jax.vmap(lambda index: jax.random.fold_in(key, index))(jnp.arange(n))

    return jax.vmap(of_prompt)(row_keys(jax.random.key(seed), prompts)).reshape(-1)
