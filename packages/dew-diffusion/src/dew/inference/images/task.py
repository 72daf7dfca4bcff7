"""The image generation task."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np

from dew.diffusion.grid import Grid, at_times
from dew.diffusion.process import Process
from dew.inference.images.prepared import (
    DenoisingInputs,
    Prompts,
    encode,
    encode_blank,
    read_prompts,
    request_keys,
    spread,
)
from dew.inference.images.result import Images
from dew.objectives.diffusion.objective import ENCODERS
from dew.sampling.images import CFG, row_noise, sample
from dew.sampling.solvers import DDIM, Solver

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from dew.inputs.spec import InputSpec
    from dew.objectives.diffusion import DiffusionObjective
    from dew.registry import DtypeName
    from dew.training import Layout, MeshSpec

START, FRESH = 0, 1
"""The uses of a row's key: the noise it starts from, and what a solver draws on the way."""

PLAIN = DDIM()
"""The solver of a task that names none."""

OWN: Any = object()
"""Stands for the task's own guidance in a call, where None would turn it off."""


@dataclass(frozen=True, eq=False)
class TextToImage:
    """A denoiser bound to weights, drawing images for captions.

    An image follows from its caption, its row's key and the settings: neither the other rows nor their order
    change it. Calls of equal shapes and settings reuse one executable, also after `bind`.

    Attributes:
        model: `model(x [B, ...], noise_level [B], **conditions)`.
        process: the convention the model was trained with.
        inputs: the shape of a sample, and the conditions by the model's keywords.
        params: the complete variables tree.
        autoencoder: None; latent diffusion is not supported yet.
        steps: evaluations of an image.
        guidance: None draws from the conditional prediction alone.
        sampler: the solver.
        grid: from a number of steps to the process and the noise levels they walk; None takes the process's
            own.
        final_denoise: end at the estimate of x0; False ends at the grid's last point.
        finish: `finish(params, images)`, run on the decoded images.
        blank: the unconditional branch, one row by keyword; None encodes it in every request.
    """

    model: Any
    process: Process
    inputs: InputSpec
    params: Mapping[str, Any]
    autoencoder: object = None
    steps: int = 50
    guidance: CFG | None = None
    sampler: Solver = PLAIN
    grid: Callable[[int], tuple[Process, Grid]] | None = None
    final_denoise: bool = True
    finish: Callable[[Mapping[str, Any], jax.Array], jax.Array] | None = None
    blank: Mapping[str, jax.Array | np.ndarray] | None = None

    def __post_init__(self) -> None:
        if self.autoencoder is not None:
            raise ValueError("autoencoder: latent diffusion is not supported in this version; leave it None")
        check_steps(self.steps)
        # Maps are rebuilt and leaves kept: what the caller does to the mapping later does not reach the task.
        object.__setattr__(self, "params", jax.tree.map(lambda leaf: leaf, dict(self.params)))

    @property
    def variables(self) -> Mapping[str, Any]:
        """The complete variables tree."""
        return self.params

    def bind(self, variables: Mapping[str, Any]) -> Self:
        """This task over other weights of the same shapes."""
        return replace(self, params=variables)

    def prepare(
        self,
        prompts: Prompts,
        *,
        key: jax.Array | None = None,
        seed: int | None = None,
        steps: int | None = None,
        unconditional: Mapping[str, jax.Array] | str | None = None,
        image: object = None,
        image_latents: object = None,
        mask: object = None,
        noise: jax.Array | None = None,
        initial: jax.Array | None = None,
        times: Grid | Sequence[float] | np.ndarray | None = None,
        encode_key: object = None,
    ) -> DenoisingInputs:
        """Encode the captions and draw the noise, once.

        Args:
            prompts: a caption, several, or for a model without conditions the number of images.
            key: typed key of the request, into which each row's index is folded, or a key for each row.
            seed: `seed=n` is `key=jax.random.key(n)`.
            steps: evaluations; None takes the task's own.
            unconditional: a caption that stands for no condition in every row, or the encoded branch; None
                takes the task's own.
            image: refused, as image_latents, mask and encode_key are: images start from noise alone.
            image_latents: refused.
            mask: refused.
            noise: unit normal noise `[B, ...]` in place of what the keys draw.
            initial: samples at the grid's first level, in place of noise brought to it.
            times: a grid, or the process times of one, in place of `steps`.
            encode_key: refused.

        Raises:
            ValueError: what is refused, both of two exclusive arguments, an unknown caption or a wrong shape.
            TypeError: prompts of another kind.
        """
        refused = {"image": image, "image_latents": image_latents, "mask": mask, "encode_key": encode_key}
        for name, value in refused.items():
            if value is not None:
                raise ValueError(f"{name} is not supported in this version; images start from noise alone")
        rows, captions = read_prompts(prompts, self.inputs)
        keys = request_keys(key, seed, rows)
        process, grid = self._walk(steps, times)
        given = encode(self.inputs, self.params, captions) if captions else {}
        return DenoisingInputs(
            initial=self._initial(keys, grid, noise, initial),
            keys=jax.vmap(jax.random.fold_in, (0, None))(keys, FRESH),
            given=given,
            unconditional=spread(self._blank(unconditional), given) if given else None,
            process=process,
            grid=grid,
            captions=captions,
        )

    def __call__(
        self,
        request: Prompts | DenoisingInputs,
        *,
        steps: int | None = None,
        guidance: CFG | None = OWN,
        sampler: Solver | None = None,
        key: jax.Array | None = None,
        seed: int | None = None,
        decode: bool = True,
    ) -> Images:
        """Draw an image for every caption.

        Args:
            request: captions, or what `prepare` made of them.
            steps: evaluations of an image; a prepared request has its own.
            guidance: in place of the task's own; None draws from the conditional prediction alone.
            sampler: in place of the task's own.
            key: as in `prepare`; a prepared request has its own.
            seed: as in `prepare`.
            decode: clip the images to [-1, 1] and run `finish` on them; False gives the samples as the
                trajectory leaves them. Without an autoencoder there is nothing else to decode.

        Raises:
            ValueError: an argument that a prepared request has settled, guidance of a model without
                conditions, or what `prepare` refuses.
        """
        guided = self._guidance(guidance)
        if isinstance(request, DenoisingInputs):
            settled = {"steps": steps, "key": key, "seed": seed}
            if given := [name for name, value in settled.items() if value is not None]:
                raise ValueError(f"{given[0]} is settled by the prepared request; give it to prepare")
            ready = request
        else:
            ready = self.prepare(request, key=key, seed=seed, steps=steps)
        images = walk(
            self.model,
            ready.process,
            sampler or self.sampler,
            guided,
            ready.grid,
            self.final_denoise,
            decode,
            self.finish,
            self.params,
            ready.initial,
            ready.keys,
            ready.given,
            ready.unconditional,
        )
        return Images(images, ready.rows, ready.captions)

    @classmethod
    def from_objective(cls, objective: DiffusionObjective, variables: Mapping[str, Any]) -> Self:
        """The task of an objective's model over `variables`, sampled as the objective's evaluation does."""
        return cls(
            objective.model,
            objective.process,
            objective.inputs,
            variables,
            steps=objective.steps,
            guidance=objective.guidance,
            sampler=objective.sampler,
            blank=objective.blank,
        )

    @classmethod
    def from_run(
        cls,
        directory: str | os.PathLike[str],
        *,
        ema: bool = True,
        step: int | None = None,
        mesh: Mesh | MeshSpec | None = None,
        layout: Layout | None = None,
        dtype: DtypeName | Literal["auto"] | None = None,
        param_dtype: DtypeName | Literal["auto"] | None = None,
    ) -> Self:
        """The model of a training run, sampled as the run itself samples.

        Args:
            directory: the run's folder.
            ema: the averaged weights, where the run is configured to keep an average; False takes the live
                ones.
            step: the checkpoint; None takes the newest.
            mesh: the devices; None is the first device alone.
            layout: where parameters stand on `mesh`.
            dtype: computes; None or "auto" keeps the run's.
            param_dtype: stores; None or "auto" keeps the run's.

        Raises:
            FileNotFoundError: no run or no complete checkpoint there.
            ValueError: a run of another kind, or a checkpoint that is not what `run.json` describes.
        """
        from dew.inference.images.run import open_run

        objective, variables, model = open_run(
            directory, ema=ema, step=step, mesh=mesh, layout=layout, dtype=dtype, param_dtype=param_dtype
        )
        return replace(cls.from_objective(objective, variables), model=model)

    def _guidance(self, asked: CFG | None) -> CFG | None:
        """The guidance of a call; without conditions there is none."""
        if self.inputs.conditions:
            return self.guidance if asked is OWN else asked
        if asked is not OWN and asked is not None and asked.scale != 1:
            raise ValueError(
                f"guidance.scale={asked.scale} has nothing to guide by, since this model has no conditions; "
                "leave it out"
            )
        return None

    def _walk(
        self, steps: int | None, times: Grid | Sequence[float] | np.ndarray | None
    ) -> tuple[Process, Grid]:
        """The process and the noise levels of a request."""
        if times is not None:
            if steps is not None:
                raise ValueError(f"steps={steps} and times are both given; times say how many there are")
            return self.process, times if isinstance(times, Grid) else at_times(self.process, times)
        count = check_steps(self.steps if steps is None else steps)
        return (self.process, self.process.grid(count)) if self.grid is None else self.grid(count)

    def _initial(
        self, keys: jax.Array, grid: Grid, noise: jax.Array | None, initial: jax.Array | None
    ) -> jax.Array:
        if noise is not None and initial is not None:
            raise ValueError("noise and initial are both given; initial is what the noise would become")
        shape = self.inputs.sample.shape
        chosen = noise if initial is None else initial
        if chosen is None:
            return grid.sigma[0] * row_noise(keys, shape, START)
        if chosen.shape != (len(keys), *shape):
            name = "noise" if initial is None else "initial"
            raise ValueError(f"{name} of shape {chosen.shape} must be {(len(keys), *shape)}")
        chosen = jnp.asarray(chosen, jnp.float32)
        return chosen if noise is None else grid.sigma[0] * chosen

    def _blank(
        self, unconditional: Mapping[str, jax.Array] | str | None
    ) -> Mapping[str, jax.Array | np.ndarray]:
        if isinstance(unconditional, str):
            return encode(self.inputs, self.params, [unconditional])
        chosen = self.blank if unconditional is None else unconditional
        return encode_blank(self.inputs, self.params) if chosen is None else chosen


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4, 5, 6, 7))
def walk(
    model: Any,
    process: Process,
    solver: Solver,
    guidance: CFG | None,
    grid: Grid,
    final_denoise: bool,
    decode: bool,
    finish: Callable[[Mapping[str, Any], jax.Array], jax.Array] | None,
    params: Mapping[str, Any],
    initial: jax.Array,
    keys: jax.Array,
    given: Mapping[str, jax.Array],
    unconditional: Mapping[str, jax.Array] | None,
) -> jax.Array:
    """The compiled trajectory of a request; settings are static, arrays are arguments."""
    own = {name: tree for name, tree in params.items() if name != ENCODERS}
    denoise = process.denoiser(partial(model.apply, own), given, unconditional)
    samples = sample(
        denoise, initial, solver=solver, guidance=guidance, key=keys, times=grid, final_denoise=final_denoise
    )
    if not decode:
        return samples
    images = jnp.clip(samples, -1, 1)
    return images if finish is None else finish(params, images)


def check_steps(steps: int) -> int:
    """`steps`, where it is a count.

    Raises:
        ValueError: it is below 1.
    """
    if steps < 1:
        raise ValueError(f"steps={steps} must be at least 1")
    return steps
