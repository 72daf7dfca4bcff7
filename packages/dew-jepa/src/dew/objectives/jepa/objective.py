"""I-JEPA: predict the features of hidden blocks from the rest of the image (arXiv 2301.08243).

Dimensions: B images, M target blocks of each, N patches, K context and T target slots, D features.

A target encoder, the moving average of the context encoder, sees the whole image. Its tokens, each normalized
over its features without a learned scale, are the targets `y`; the predictor's outputs at the hidden places
are `p`. With `l = mean over D of smooth_l1(p - y)`, the loss is the mean of l over all target tokens of the
batch: `Mean(sum l, number of tokens)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy as jnp
import optax

from dew.artifacts import ImageGrid
from dew.inputs.spec import Field, InputSpec
from dew.nn.backbones.jepa.tokens import gather_tokens
from dew.objectives.base import Aux, Batch, EMASpec, Mean, Objective, Step, Variables, under
from dew.objectives.jepa.config import check_momentum
from dew.objectives.jepa.masks import Masks
from dew.objectives.jepa.representation import PROBE_KEY, Representation
from dew.telemetry.cost import StepCost

if TYPE_CHECKING:
    from dew.inference.embeddings import ImageEmbedding
    from dew.training.state import TrainState

ENCODER, PREDICTOR = "context_encoder", "predictor"
"""The subtrees of `params`; the average of the first is the target encoder."""

TARGET_SOURCE = "target encoder, average-pooled"
CONTEXT_SOURCE = "context encoder, average-pooled"
FLIP_STREAM = 0xFFFFFFFF
"""Folded into the step's key for mirroring; the masks fold in row numbers and never reach it."""
SHOWN = 8
"""Images of one preview."""


class Encoder(Protocol):
    """A Linen module from images, or some of their patches, to token features.

    It is called with `(images, tokens, valid, train=)` as `dew.nn.backbones.jepa.JepaEncoder` is.
    """

    @property
    def grid(self) -> tuple[int, int]: ...
    @property
    def features(self) -> int: ...


class Predictor(Protocol):
    """A Linen module from context features to target features, as `JepaPredictor` is."""

    @property
    def grid(self) -> tuple[int, int]: ...
    @property
    def features(self) -> int: ...


class Mask(Protocol):
    """Draws which patches are seen and which are predicted."""

    @property
    def grid(self) -> tuple[int, int]: ...

    def draw(self, key: jax.Array, rows: int) -> Masks: ...


class JepaObjective(Objective[Mean]):
    """Train an encoder to predict its own average's features of hidden blocks.

    Args:
        encoder: from images to token features.
        predictor: from context features to target features of the encoder's width.
        mask: draws the masks; each row draws from a key of its own.
        sample: the images: their key in a batch and the shape [H, W, C] of one. Bytes are scaled to [-1, 1].
        momentum: decay of the target encoder at the first update and after `momentum_steps` of them. Update
            n, counted from 0, uses `m0 + (m1 - m0) n / momentum_steps`; from `momentum_steps` on it is m1.
        momentum_steps: length of that line.
        label_key: the field with the labels that probes read; batches may lack it.
        flip: mirror each training image left to right and top to bottom, each with probability 1/2.

    Raises:
        ValueError: grids or widths that disagree, a momentum outside [0, 1], or fewer than one step of it.
    """

    artifact = Representation
    unit = "images"

    def __init__(
        self,
        encoder: Encoder,
        predictor: Predictor,
        mask: Mask,
        sample: Field,
        momentum: tuple[float, float] = (0.996, 1.0),
        momentum_steps: int = 100000,
        label_key: str = "label",
        *,
        flip: bool = False,
    ) -> None:
        _check_geometry(encoder, predictor, mask)
        check_momentum(momentum, momentum_steps)
        self.encoder: Any = encoder
        self.predictor: Any = predictor
        self.mask = mask
        self.sample = sample
        self.label_key = label_key
        self.flip = flip
        self.inputs = InputSpec(sample)
        self.ema = EMASpec(
            optax.linear_schedule(momentum[0], momentum[1], momentum_steps), under("params", ENCODER)
        )

    def init(self, key: jax.Array, variables: Variables | None = None) -> Variables:
        """Draw both networks.

        Raises:
            ValueError: a network keeps other collections than `params`, or does not give tokens of its width.
        """
        encoder_key, predictor_key, mask_key = jax.random.split(key, 3)
        masks = self.mask.draw(mask_key, 1)
        images = jnp.zeros((1, *self.sample.shape))
        context = jnp.zeros((*masks.context.shape, self.encoder.features))
        return {
            "params": {
                ENCODER: _params(self.encoder.init(encoder_key, images), "encoder"),
                PREDICTOR: _params(
                    self.predictor.init(predictor_key, context, masks.context, masks.targets), "predictor"
                ),
            }
        }

    def loss(self, params: Variables, batch: Batch, step: Step) -> tuple[Mean, Aux[None]]:
        """The summed loss of the target tokens and their number.

        The target encoder is `step.ema`'s. Without an average, as before the first update, it is the context
        encoder itself; no gradient reaches it either way.
        """
        images = self.images(batch)
        if self.flip:
            images = flipped(images, jax.random.fold_in(step.key, FLIP_STREAM))
        masks = self.mask.draw(step.key, images.shape[0])
        targets = self.targets(params if step.ema is None else step.ema, images)
        wanted = gather_tokens(targets, masks.targets)
        predicted = self.predictions(params, images, masks, key=step.key)
        error = jnp.mean(smooth_l1(predicted - wanted), axis=-1)
        counted = masks.target_valid
        stats = Mean(jnp.sum(jnp.where(counted, error, 0)), jnp.sum(counted, dtype=jnp.float32))
        context = jnp.mean(jnp.sum(masks.context_valid, axis=-1, dtype=jnp.float32))
        spread = jnp.mean(jnp.std(predicted, axis=(0, 1, 2), where=counted[..., None]))
        return stats, Aux({"context_tokens": context, "prediction_std": spread})

    def step_cost(self, batch: Batch) -> StepCost | None:
        """Context encoder and predictor forward and backward, the target encoder forward over whole images.

        Slots that a row leaves unused count like the others. None where a network has no count.
        """
        encode = getattr(self.encoder, "forward_macs", None)
        predict = getattr(self.predictor, "forward_macs", None)
        if encode is None or predict is None:
            return None
        rows = batch[self.sample.key].shape[0]
        masks = jax.eval_shape(lambda: self.mask.draw(jax.random.key(0), 1))
        (_, context), (_, blocks, targets) = masks.context.shape, masks.targets.shape
        patches = self.mask.grid[0] * self.mask.grid[1]
        trained = encode(context) + predict(context, targets, blocks)
        return StepCost(
            flops=2.0 * rows * (3 * trained + encode(patches)),
            dtype=jnp.dtype(getattr(self.encoder, "dtype", jnp.float32)).name,
            counts="context encoder and predictor forward and backward, target encoder forward; every "
            "slot of the masks",
        )

    def images(self, batch: Batch) -> jax.Array:
        """The images of a batch in [-1, 1]; bytes become `x / 127.5 - 1`, floats are taken as they are.

        Raises:
            ValueError: no such field, or images of another shape than `sample`.
            TypeError: images that are neither bytes nor floating.
        """
        if self.sample.key not in batch:
            known = ", ".join(sorted(batch)) or "none"
            raise ValueError(f"the batch has no field {self.sample.key!r} for the images; it has {known}")
        images = jnp.asarray(batch[self.sample.key])
        if images.shape[1:] != self.sample.shape:
            raise ValueError(
                f"batch[{self.sample.key!r}] holds images of shape {images.shape[1:]}, and the objective was "
                f"built for {self.sample.shape}; build it for the data's own size"
            )
        return scaled(images)

    def features(self, variables: Variables, images: jax.Array) -> jax.Array:
        """[B, N, D] token features of whole images, by the encoder in `variables`, float32."""
        tree = {"params": variables["params"][ENCODER]}
        return encoder_features(self.encoder, tree, images)

    def targets(self, variables: Variables, images: jax.Array) -> jax.Array:
        """[B, N, D] normalized features, through which no gradient passes.

        The encoder's own last norm has a learned scale and bias; this one has none, so that no scale of the
        features can lower the loss.
        """
        return jax.lax.stop_gradient(normalized(self.features(variables, images)))

    def predictions(
        self, params: Variables, images: jax.Array, masks: Masks, *, key: jax.Array | None = None
    ) -> jax.Array:
        """[B, M, T, D] predicted features at the target places, float32.

        Args:
            params: the live variables.
            images: in [-1, 1]; patches outside the context do not count.
            masks: the context and the places to predict.
            key: of the networks' dropout; None evaluates them without.
        """
        train = key is not None
        rngs = None if key is None else {"dropout": key}
        context = self.encoder.apply(
            {"params": params["params"][ENCODER]},
            images,
            masks.context,
            masks.context_valid,
            train=train,
            rngs=rngs,
        )
        predicted = self.predictor.apply(
            {"params": params["params"][PREDICTOR]},
            context,
            masks.context,
            masks.targets,
            context_valid=masks.context_valid,
            target_valid=masks.target_valid,
            train=train,
            rngs=rngs,
        )
        return predicted.astype(jnp.float32)

    def evaluate(self, params: Variables, batch: Batch, step: Step) -> Representation:
        """The target encoder's tokens, averaged over each image."""
        variables = params if step.ema is None else step.ema
        return Representation(
            features=jnp.mean(self.features(variables, self.images(batch)), axis=1),
            labels=batch.get(self.label_key),
            use=batch.get(PROBE_KEY),
            source=TARGET_SOURCE,
        )

    def preview(self, params: Variables, batch: Batch, step: Step, *, scored: Any = None) -> ImageGrid | None:
        """Some images as the context encoder sees them: what is hidden is gray."""
        images = self.images({self.sample.key: batch[self.sample.key][:SHOWN]})
        masks = self.mask.draw(step.key, images.shape[0])
        rows, columns = self.mask.grid
        seen = (
            jnp.zeros((len(images), rows * columns))
            .at[jnp.arange(len(images))[:, None], masks.context]
            .set(1)
        )
        height, width = images.shape[1] // rows, images.shape[2] // columns
        pixels = seen.reshape(-1, rows, columns, 1).repeat(height, axis=1).repeat(width, axis=2)
        return ImageGrid(images=images * pixels, references=images)

    def pipeline(self, state: TrainState, *, ema: bool = True) -> ImageEmbedding:
        """The trained encoder as a task: the target encoder, or without ema the context encoder."""
        from dew.inference.embeddings import ImageEmbedding

        height, width, channels = self.sample.shape
        return ImageEmbedding(
            self.encoder,
            state.averaged if ema else state.params,
            sample=(height, width, channels),
            source=TARGET_SOURCE if ema else CONTEXT_SOURCE,
        )


def scaled(images: jax.Array) -> jax.Array:
    """Images in [-1, 1]: bytes become `x / 127.5 - 1`, floats are taken as they are.

    Raises:
        TypeError: images that are neither.
    """
    if images.dtype == jnp.uint8:
        return images.astype(jnp.float32) / 127.5 - 1
    if not jnp.issubdtype(images.dtype, jnp.floating):
        raise TypeError(f"images of type {images.dtype} must be bytes, or floats in [-1, 1]")
    return images.astype(jnp.float32)


def flipped(images: jax.Array, key: jax.Array) -> jax.Array:
    """Each image mirrored or not along each of its sides; image i draws from `fold_in(key, i)` alone."""

    def mirrored(row: jax.Array, image: jax.Array) -> jax.Array:
        across, down = jax.random.bernoulli(jax.random.fold_in(key, row), 0.5, (2,))
        image = jnp.where(across, image[:, ::-1], image)
        return jnp.where(down, image[::-1], image)

    return jax.vmap(mirrored)(jnp.arange(images.shape[0]), images)


def encoder_features(encoder: Any, variables: Variables, images: jax.Array) -> jax.Array:
    """[B, N, D] token features of whole images, float32, by an encoder over its own variables."""
    return encoder.apply(variables, scaled(images), train=False).astype(jnp.float32)


def normalized(features: jax.Array) -> jax.Array:
    """`(x - mean) / sqrt(variance + 1e-5)` over the last axis, with the biased variance."""
    centred = features - jnp.mean(features, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + 1e-5)


def smooth_l1(residual: jax.Array) -> jax.Array:
    """`r^2 / 2` where `|r| < 1`, else `|r| - 1/2`."""
    return optax.losses.huber_loss(residual, delta=1.0)


def _params(variables: Any, name: str) -> Any:
    others = sorted(set(variables) - {"params"})
    if others:
        raise ValueError(
            f"the {name} keeps the collection {others[0]!r}; only `params` follow the moving average here, "
            "so use a network without running statistics"
        )
    return variables["params"]


def _check_geometry(encoder: Encoder, predictor: Predictor, mask: Mask) -> None:
    grids = {"encoder": encoder.grid, "predictor": predictor.grid, "mask": mask.grid}
    if len({tuple(grid) for grid in grids.values()}) > 1:
        listed = ", ".join(f"{name} {grid[0]}x{grid[1]}" for name, grid in grids.items())
        raise ValueError(f"the patch grids must agree: {listed}")
    if encoder.features != predictor.features:
        raise ValueError(
            f"the predictor gives {predictor.features} features, and the encoder has {encoder.features}; "
            "they must agree"
        )
