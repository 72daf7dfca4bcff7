"""Training a denoiser: draw a time and noise for every row, corrupt it, predict, weigh the error.

Dimensions: B rows, any sample shape behind them. With the process's `x_t = alpha(t) x0 + sigma(t) noise`, its
target `y` and weight `w`, the loss is `sum_B w(t) mean((model(x_t, t, condition) - y)^2) / B`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from dew.artifacts import ImageGrid
from dew.diffusion import Denoiser, Process
from dew.diffusion.times import uniform_rows
from dew.inputs.encoders import Encoder
from dew.inputs.spec import InputSpec
from dew.objectives.base import Aux, Batch, EMASpec, Mean, Objective, Step, Variables, under
from dew.objectives.diffusion.initial import initial_variables
from dew.objectives.diffusion.streams import stream
from dew.sampling.images import CFG, row_keys, row_noise, sample
from dew.sampling.solvers import DDIM, Solver
from dew.telemetry.cost import StepCost

if TYPE_CHECKING:
    from dew.inference.images import TextToImage
    from dew.training.state import TrainState

VALIDATION_SAMPLES = 4
"""Rows of a validation batch that a preview draws for, where no captions show all a condition can say."""

SHOWN, SHOWN_PIXELS = 40, 16 * 64 * 64
"""Images of a preview at most, and their pixels together; every caption that fits is drawn in each round."""

ENCODERS = "encoders"
"""The collection of the condition encoders' frozen arrays, by the model's keyword."""


class DiffusionObjective(Objective[Mean, None]):
    """Denoise: a random time and noise for every row, and a weighted squared error of the prediction.

    Args:
        model: `model(x [B, ...], noise_level [B], **conditions, train=)`, a prediction of the shape of x.
        process: noise, target, weights and training times.
        inputs: the sample's batch field, and the conditions by the model's keywords. Bytes are read as
            `x / 127.5 - 1`, floating samples as they are.
        autoencoder: None; latent diffusion is not supported yet.
        unconditional_prob: part of the training rows whose conditions are replaced by none.
        ema_decay: of the moving average; None keeps none, and 1 a frozen copy.
        sampler: the solver of samples.
        guidance: of samples; None draws from the conditional prediction alone. Nothing guides an objective
            without conditions.
        steps: evaluations in a sample.
        pretrained: start from this complete variables tree.

    Raises:
        ValueError: an autoencoder, or a number out of its range.
        TypeError: a condition whose encoder cannot encode.

    Attributes:
        blank: what stands for no condition, one row by the model's keyword, encoded once at construction.
    """

    artifact = ImageGrid
    unit = "images"

    def __init__(
        self,
        model: nn.Module,
        process: Process,
        inputs: InputSpec,
        *,
        autoencoder: object = None,
        unconditional_prob: float = 0.12,
        ema_decay: float | None = 0.999,
        sampler: Solver = DDIM(),  # noqa: B008 - frozen
        guidance: CFG | None = CFG(3.0),  # noqa: B008 - frozen
        steps: int = 200,
        pretrained: Variables | None = None,
    ) -> None:
        if autoencoder is not None:
            raise ValueError("autoencoder: latent diffusion is not supported in this version; leave it None")
        if not 0 <= unconditional_prob <= 1:
            raise ValueError(f"unconditional_prob={unconditional_prob} must lie in [0, 1]")
        if ema_decay is not None and not 0 <= ema_decay <= 1:
            raise ValueError(f"ema_decay={ema_decay} must lie in [0, 1], or be None for no average")
        if steps < 1:
            raise ValueError(f"steps={steps} must be at least 1")
        self.model = model
        self.process = process
        self.inputs = inputs
        self.autoencoder = autoencoder
        self.unconditional_prob = unconditional_prob
        self.sampler = sampler
        self.guidance = guidance if inputs.conditions else None
        self.steps = steps
        self.pretrained = pretrained
        self._encoders = {
            keyword: encoder_of(keyword, each.encoder) for keyword, each in inputs.conditions.items()
        }
        self.blank = {
            keyword: np.asarray(value) for keyword, value in self.encode(self.encoder_params()).items()
        }
        self._draw = jax.jit(self._generate, static_argnames="rows")
        if ema_decay is not None:
            self.ema = EMASpec(optax.constant_schedule(ema_decay), under("params"))

    @property
    def latent_shape(self) -> tuple[int, ...]:
        """The shape of one example that the model denoises."""
        return self.inputs.sample.shape

    def encoder_params(self) -> dict[str, Variables]:
        """The frozen arrays of every condition encoder that has some, by the model's keyword."""
        return {keyword: each.params for keyword, each in self._encoders.items() if each.params}

    def held_variables(self) -> Variables:
        """What `init` starts from instead of drawing it: a whole tree, or the frozen encoders."""
        if self.pretrained is not None:
            return self.pretrained
        frozen = self.encoder_params()
        return {ENCODERS: frozen} if frozen else {}

    def init(self, key: jax.Array, variables: Variables | None = None) -> Variables:
        """Draw the model's variables and take the held ones.

        Raises:
            ValueError: held variables that do not fit the model.
        """
        held = self.held_variables() if variables is None else variables
        frozen = {ENCODERS: held[ENCODERS]} if ENCODERS in held else {}
        own = {name: tree for name, tree in held.items() if name != ENCODERS}
        conditions = self.encode(frozen.get(ENCODERS, {}))
        draw = partial(
            self.model.init, key, jnp.zeros((1, *self.latent_shape)), jnp.zeros((1,)), **conditions
        )
        drawn = initial_variables(cast("Any", draw), own or None)
        return {**drawn, **frozen}

    def trainable(self, params: Variables) -> dict[str, Any]:
        """The model's own collections, without the frozen encoders."""
        return {name: tree for name, tree in params.items() if name != ENCODERS}

    def encode(self, encoders: Variables, tokens: Mapping[str, Any] | None = None) -> dict[str, jax.Array]:
        """The conditions by the model's keywords, with a leading row axis.

        Args:
            encoders: the frozen arrays by keyword, as `encoder_params` gives them.
            tokens: batch field to tokens; None encodes what stands for no condition, one row of it.
        """
        encoded: dict[str, jax.Array] = {}
        for keyword, condition in self.inputs.conditions.items():
            encoder = self._encoders[keyword]
            if tokens is None:
                read = encoder.tokenize([condition.unconditional])
            else:
                read = field_of(tokens, condition.field)
            encoded[keyword] = encoder.encode(encoders.get(keyword, {}), read)
        return encoded

    def blank_conditions(self, like: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """`blank` in the dtypes of the conditional branch `like`."""
        return {keyword: jnp.asarray(value, like[keyword].dtype) for keyword, value in self.blank.items()}

    def encoded_conditions(self, params: Variables, batch: Batch) -> dict[str, jax.Array]:
        """Every condition of a batch from its own field, under the frozen arrays in `params`."""
        return self.encode(params.get(ENCODERS, {}), batch)

    def denoiser(
        self,
        params: Variables,
        given: Mapping[str, jax.Array],
        unconditional: Mapping[str, jax.Array] | None = None,
    ) -> Denoiser:
        """The process's denoiser over the model's own collections.

        Args:
            params: the complete variables.
            given: the conditions, [B, ...].
            unconditional: what stands for none, one row or B; used where the objective is guided.
        """
        apply = self._applied(params)
        if self.guidance is None or unconditional is None:
            return self.process.denoiser(apply, given)
        spread = {
            keyword: jnp.broadcast_to(value, given[keyword].shape) for keyword, value in unconditional.items()
        }
        return self.process.denoiser(apply, given, spread)

    def loss(self, params: Variables, batch: Batch, step: Step) -> tuple[Mean, Aux[None]]:
        """The summed weighted error of the rows, and their number."""
        x0 = self.samples(batch)
        rows = x0.shape[0]
        t = self.process.draw_times(stream(step.key, "time"), rows)
        noise = self._noise(step.key, "noise", rows)
        scaled, level = self.process.model_input(self.process.corrupt(x0, noise, t), t)
        given = self._dropped(self.encoded_conditions(params, batch), rows, step.key)
        predicted = self._applied(params)(
            scaled, level, **given, train=True, rngs={"dropout": stream(step.key, "dropout")}
        )
        error = predicted.astype(jnp.float32) - self.process.target(x0, noise, t)
        squared = jnp.mean(jnp.square(error), axis=tuple(range(1, error.ndim)))
        return Mean(jnp.sum(self.process.weight(t) * squared), jnp.asarray(rows, jnp.float32)), Aux()

    def step_cost(self, batch: Batch) -> StepCost | None:
        """The denoiser forward and backward over every row; the frozen condition encoders are not counted.

        None where the model has no count.
        """
        count = getattr(self.model, "forward_macs", None)
        if count is None:
            return None
        rows = field_of(batch, self.inputs.sample.key).shape[0]
        width = sum(value.shape[-1] for value in self.blank.values())
        return StepCost(
            flops=6.0 * rows * count(self.latent_shape, width),
            dtype=jnp.dtype(getattr(self.model, "dtype", jnp.float32)).name,
            counts="the denoiser alone, every patch seen by every patch",
        )

    def evaluate(self, params: Variables, batch: Batch, step: Step) -> ImageGrid:
        """A generated sample for every row, by the row's own condition and key, beside the real ones."""
        live = params if step.ema is None else step.ema
        real = self.samples(batch)
        images = self._generate(live, self.encoded_conditions(live, batch), step.key, rows=real.shape[0])
        return ImageGrid(images=images, references=real)

    def preview(self, params: Variables, batch: Batch, step: Step, *, scored: Any = None) -> ImageGrid:
        """A small draw for display, with captions.

        It shows every caption the condition names as an example, or the first rows of the batch.
        """
        live = params if step.ema is None else step.ema
        tokens, captions = self._shown(batch)
        given = self.encode(live.get(ENCODERS, {}), tokens)
        rows = next((len(value) for value in given.values()), VALIDATION_SAMPLES)
        return ImageGrid(images=self._draw(live, given, step.key, rows=rows), captions=captions)

    def pipeline(self, state: TrainState, *, ema: bool = True) -> TextToImage:
        """The trained model as an image task that samples as evaluation does.

        Args:
            state: of the run.
            ema: take the averaged weights; False takes the live ones.

        Raises:
            ValueError: `ema` is True and the run keeps no average.
        """
        from dew.inference.images import TextToImage

        return TextToImage.from_objective(self, state.averaged if ema else state.params)

    def samples(self, batch: Batch) -> jax.Array:
        """The clean samples of a batch in float32; bytes go to [-1, 1].

        Raises:
            ValueError: samples of another shape than the objective's.
            TypeError: samples that are neither bytes nor floating.
        """
        x = jnp.asarray(field_of(batch, self.inputs.sample.key))
        if x.shape[1:] != self.latent_shape:
            raise ValueError(
                f"batch[{self.inputs.sample.key!r}] holds samples of shape {x.shape[1:]}, and the objective "
                f"was built for {self.latent_shape}; build it for the data's own size"
            )
        if x.dtype == jnp.uint8:
            return x.astype(jnp.float32) / 127.5 - 1
        if not jnp.issubdtype(x.dtype, jnp.floating):
            raise TypeError(
                f"batch[{self.inputs.sample.key!r}] is {x.dtype}; give bytes, or floats in [-1, 1]"
            )
        return x.astype(jnp.float32)

    def _applied(self, params: Variables) -> Callable[..., jax.Array]:
        return partial(cast("Any", self.model.apply), self.trainable(params))

    def _noise(self, key: jax.Array, use: str, rows: int) -> jax.Array:
        return row_noise(row_keys(stream(key, use), rows), self.latent_shape, 0)

    def _dropped(self, given: dict[str, jax.Array], rows: int, key: jax.Array) -> dict[str, jax.Array]:
        """`given` with no condition in a random part of the rows; all conditions of a row go together."""
        if not given or self.unconditional_prob == 0:
            return given
        drop = uniform_rows(stream(key, "drop"), rows) < self.unconditional_prob
        blank = self.blank_conditions(given)
        return {
            keyword: jnp.where(drop.reshape(-1, *[1] * (value.ndim - 1)), blank[keyword], value)
            for keyword, value in given.items()
        }

    def _generate(
        self, params: Variables, given: Mapping[str, jax.Array], key: jax.Array, *, rows: int
    ) -> jax.Array:
        blank = self.blank_conditions(given) if given else None
        start = self.process.grid(self.steps).sigma[0] * self._noise(key, "start", rows)
        return sample(
            self.denoiser(params, given, blank),
            start,
            self.steps,
            solver=self.sampler,
            guidance=self.guidance,
            key=row_keys(stream(key, "solver"), rows),
        )

    def _shown(self, batch: Batch) -> tuple[dict[str, Any], Sequence[str]]:
        """The tokens and captions of a preview."""
        conditions = self.inputs.conditions
        if len(conditions) == 1:
            ((keyword, condition),) = conditions.items()
            height, width, *_ = self.inputs.sample.shape
            most = max(1, min(SHOWN, SHOWN_PIXELS // (height * width)))
            if captions := self._encoders[keyword].examples[:most]:
                captions = tuple(captions) * (most // len(captions))
                return {condition.field: self._encoders[keyword].tokenize(captions)}, captions
        return {
            each.field: field_of(batch, each.field)[:VALIDATION_SAMPLES] for each in conditions.values()
        }, ()


def encoder_of(keyword: str, encoder: object) -> Encoder:
    """`encoder` as one that can encode.

    Raises:
        TypeError: it lacks a member.
    """
    if not isinstance(encoder, Encoder):
        raise TypeError(
            f"the condition {keyword!r} has the encoder {type(encoder).__name__}, which lacks a member of "
            "dew.inputs.encoders.Encoder (params, examples, tokenize, encode)"
        )
    return encoder


def field_of(batch: Mapping[str, Any], key: str) -> Any:
    """One field of a batch.

    Raises:
        ValueError: the batch has none of that name.
    """
    if key not in batch:
        raise ValueError(f"the batch has no field {key!r}; it has {', '.join(sorted(batch)) or 'none'}")
    return batch[key]
