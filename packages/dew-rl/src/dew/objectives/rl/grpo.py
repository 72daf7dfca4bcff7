"""Group-relative policy optimization (arXiv 2402.03300, section 4.1): responses set against each other.

Dimensions: R responses, S targets a row; a row is packed as `dew.objectives.rl.batch` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp

from dew.artifacts import TextSamples
from dew.objectives.base import Aux, Batch, Mean, PathFilter, Prediction, Step, Variables, mean_loss, thaw
from dew.objectives.lm import TEXT_KEY, LMObjective
from dew.objectives.rl.artifacts import RewardedTexts
from dew.objectives.rl.batch import (
    ADVANTAGES_KEY,
    BEHAVIOR_KEY,
    MASK_KEY,
    NO_SPREAD_KEY,
    OLD_KEY,
    PROMPT_KEY,
    REFERENCE_KEY,
    REWARDS_KEY,
    SINGLETON_KEY,
)
from dew.objectives.rl.policy_loss import PolicyLoss
from dew.objectives.rl.responder import Responder, prompts_of
from dew.rl import (
    Surrogate,
    aggregate,
    clipped_surrogate,
    kl_estimates,
    off_policy_weights,
    policy_ratio,
)

if TYPE_CHECKING:
    from dew.inference.text import Processor, TextGeneration
    from dew.objectives.lm.decoder import Decoder
    from dew.sampling.text.config import Sampling
    from dew.telemetry.cost import StepCost
    from dew.training.state import TrainState

SHOWN = 10
"""Responses of one preview."""


class GRPOObjective(LMObjective):
    """Move a decoder towards the responses that a reward prefers within each group.

    The reference is the frozen copy in the average's place; the policy that is evaluated and published is the
    live one. The forward pass draws nothing: a ratio compares two policies, not two dropout masks.

    Args:
        model: the policy, a Linen module as `dew.objectives.lm.decoder.Decoder` describes it.
        seq_len: S, the targets of a packed row; longest prompt and budget less one.
        responder: answers and judges prompts; its temperature is the one that `reading="sampled"` divides by.
        settings: the loss.
        window_parts: microbatches of an optimizer window, which the aggregation `token_sum` divides by.
        pretrained: start from this complete variables tree.
        trainable: the parameters the optimizer moves, by path.

    Raises:
        ValueError: a model that is not causal or too short, or filters whose kept ids a reading as sampled
            would need.
    """

    artifact = RewardedTexts
    unit = "prompts"
    ema_is_reference: ClassVar[bool] = True

    def __init__(
        self,
        model: Decoder,
        seq_len: int,
        *,
        responder: Responder,
        settings: PolicyLoss = PolicyLoss(),  # noqa: B008 - frozen
        window_parts: int = 1,
        pretrained: Variables | None = None,
        trainable: PathFilter | None = None,
    ) -> None:
        reference = None if settings.kl_weight is None else 1.0
        super().__init__(
            model,
            seq_len,
            ema_decay=reference,
            pretrained=pretrained,
            trainable=trainable,
            token_accuracy=False,
        )
        if settings.reading == "sampled":
            check_read_as_sampled(responder.sampling, "reading='sampled'")
        self.responder = responder
        self.settings = settings
        self.window_parts = window_parts

    def loss(self, params: Variables, batch: Batch, step: Step) -> tuple[Mean, Aux[Variables]]:
        """Aggregated policy loss and divergence, and what the responses were like.

        Raises:
            ValueError: a divergence is asked for, and neither step nor batch holds a reference.
        """
        settings, mask = self.settings, batch[MASK_KEY]
        raw, read = self._likelihoods(params, batch)
        old = self._old(read, batch)
        ratio = policy_ratio(read, old, mask, level=settings.ratio)
        surrogate = clipped_surrogate(
            ratio.values,
            batch[ADVANTAGES_KEY][:, None],
            low=settings.clip_low,
            high=settings.clip_high,
            dual_clip=settings.dual_clip,
        )
        metrics = _reports(raw, surrogate, batch)
        losses = surrogate.losses
        if settings.correction is not None:
            corrected = off_policy_weights(old, batch[BEHAVIOR_KEY], mask, high=settings.correction)
            losses = losses * corrected.weights
            metrics |= {
                "correction": corrected.mean_weight,
                "effective_samples": corrected.effective,
                "behavior_kl": corrected.kl,
                "unknown_behavior": corrected.unknown,
            }
        if settings.kl_weight is not None:
            divergence = kl_estimates(raw, self._reference(batch, step), mask, estimator=settings.kl).values
            losses = losses + settings.kl_weight * divergence
            metrics["kl"] = _over_tokens(divergence, mask)
        return self._aggregated(losses, mask), Aux(metrics)

    def packed_log_probs(self, params: Variables, batch: Batch) -> jax.Array:
        """Log likelihood [R, S] of the responses' tokens under the model itself, 0 at the other slots.

        Aligned with the likelihoods a rollout records.
        """
        scored = -self.token_scores(params, batch[TEXT_KEY]).losses
        return jnp.where(batch[MASK_KEY] > 0, scored, 0)

    def evaluate(self, params: Variables, batch: Batch, step: Step) -> RewardedTexts:
        """The live policy's best answers to the batch's prompts, judged on the host."""
        answers = self.responder.greedy(params, *prompts_of(batch), key=step.key)
        return RewardedTexts(prompts=answers.prompts, texts=answers.responses, rewards=answers.rewards)

    def preview(
        self, params: Variables, batch: Batch, step: Step, *, scored: Any = None
    ) -> TextSamples | None:
        """Some of the answers that were judged, evenly spread over the first batch."""
        if not isinstance(scored, RewardedTexts):
            return None
        chosen = range(0, len(scored.texts), max(1, len(scored.texts) // SHOWN))[:SHOWN]
        return TextSamples(
            prompts=[scored.prompts[row] for row in chosen], texts=[scored.texts[row] for row in chosen]
        )

    def predict(
        self, params: Variables, batch: Batch, step: Step, *, train: bool, layers: Sequence[int] = ()
    ) -> tuple[Mean, Aux[Variables], Prediction]:
        """Refused: the loss is over responses, not over next tokens."""
        raise TypeError("GRPOObjective scores responses as a whole, so it has no predict")

    def pipeline(
        self, state: TrainState, *, ema: bool = True, processor: Processor | None = None
    ) -> TextGeneration:
        """The live policy, drawing as the rollouts do; the frozen reference is never published."""
        from dew.inference.text import TextGeneration

        return TextGeneration(
            self.model,
            thaw(state.params),
            processor=processor,
            sampling=self.responder.sampling,
            max_new_tokens=self.responder.max_new_tokens,
        )

    def count_units(self, batch: Batch) -> int:
        """The prompts of a batch, or the responses of one that is packed already."""
        return int(batch[PROMPT_KEY if PROMPT_KEY in batch else TEXT_KEY].shape[0])

    def step_cost(self, batch: Batch) -> StepCost | None:
        """The update on packed rows: the policy forward and backward, and a frozen reference's forward pass.

        Drawing the responses is not counted, though its time is in every rate.
        """
        reference = self.settings.kl_weight is not None and REFERENCE_KEY not in batch
        return self.rows_cost(*batch[TEXT_KEY].shape, trained=1, scored=int(reference))

    def _likelihoods(self, params: Variables, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Every target's log likelihood under the model itself, and by the reading of the ratio."""
        scores = self.token_scores(params, batch[TEXT_KEY])
        if not self._as_sampled(batch):
            return -scores.losses, -scores.losses
        temperature = self.responder.sampling.temperature
        return -scores.losses, self.sampled_log_probs(
            params, scores, batch[TEXT_KEY], temperature=temperature
        )

    def _as_sampled(self, batch: Batch) -> bool:
        """Whether the ratio reads the distribution that drew.

        Without old likelihoods the behavior's take their place, so the current side is read like them.

        Raises:
            ValueError: that reading would need the ids each draw kept.
        """
        if self.settings.reading == "sampled":
            return True
        bypass = not self.settings.on_policy and OLD_KEY not in batch
        if bypass:
            check_read_as_sampled(self.responder.sampling, f"a batch without {OLD_KEY!r}")
        return bypass

    def _old(self, read: jax.Array, batch: Batch) -> jax.Array:
        if self.settings.on_policy:
            return jax.lax.stop_gradient(read)
        return batch[BEHAVIOR_KEY if self._as_sampled(batch) else OLD_KEY]

    def _reference(self, batch: Batch, step: Step) -> jax.Array:
        if REFERENCE_KEY in batch:
            return batch[REFERENCE_KEY]
        if step.ema is None:
            raise ValueError(
                f"kl_weight={self.settings.kl_weight} needs a reference: train through the Trainer, which "
                f"keeps one, give {REFERENCE_KEY!r} in the batch, or set kl_weight to None"
            )
        return jax.lax.stop_gradient(-self.token_scores(step.ema, batch[TEXT_KEY]).losses)

    def _aggregated(self, losses: jax.Array, mask: jax.Array) -> Mean:
        mode = self.settings.aggregation
        return aggregate(
            losses,
            mask,
            mode=mode,
            budget=self.responder.max_new_tokens if mode == "seq_mean_token_sum_norm" else None,
            window_parts=self.window_parts if mode == "token_sum" else 1,
        )


def _reports(raw: jax.Array, surrogate: Surrogate, batch: Batch) -> dict[str, jax.Array]:
    """What the responses and the step were like; entropy is estimated by the drawn tokens' surprise."""
    mask, rewards = batch[MASK_KEY], batch[REWARDS_KEY]
    counted = jnp.isfinite(rewards)
    lengths = jnp.sum(mask, axis=1)
    gap = jnp.abs(raw - batch[OLD_KEY]) if OLD_KEY in batch else jnp.zeros_like(raw)
    return {
        "reward": _mean(jnp.where(counted, rewards, 0), counted),
        "entropy": _over_tokens(-raw, mask),
        "clip_fraction": _over_tokens(surrogate.clipped.astype(jnp.float32), mask),
        "length": _mean(lengths, lengths > 0),
        "no_spread": jnp.mean(batch[NO_SPREAD_KEY]),
        "singleton": jnp.mean(batch[SINGLETON_KEY]),
        "abstained": jnp.mean((~counted).astype(jnp.float32)),
        "sampler_gap": jnp.max(jnp.where(mask > 0, gap, 0)),
    }


def _over_tokens(values: jax.Array, mask: jax.Array) -> jax.Array:
    return jax.lax.stop_gradient(_mean(jnp.where(mask > 0, values, 0), mask))


def _mean(values: jax.Array, counted: jax.Array) -> jax.Array:
    """The mean of what is counted, 0 where nothing is."""
    return mean_loss(Mean(jnp.sum(values), jnp.sum(counted)))[0]


def check_read_as_sampled(sampling: Sampling, why: str) -> None:
    """Refuse a policy of draws whose distribution the temperature alone does not give back.

    Args:
        sampling: how responses are drawn.
        why: what asks for that reading, for the message.

    Raises:
        ValueError: filters, or a temperature of 0.
    """
    if sampling.top_k is not None or sampling.top_p < 1 or sampling.min_p > 0:
        raise ValueError(
            f"{why} under top_k={sampling.top_k}, top_p={sampling.top_p}, min_p={sampling.min_p} needs the "
            f"ids each draw kept, which are not recorded in this version; draw without filters, or give "
            f"{OLD_KEY!r} and use reading='raw'"
        )
    if sampling.temperature == 0:
        raise ValueError(
            f"{why} at temperature=0: one response only is drawn, with no likelihood to compare; raise it"
        )
