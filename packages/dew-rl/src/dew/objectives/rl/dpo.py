"""Direct preference optimization of a decoder (arXiv 2305.18290), with the losses of `dew.rl.preference`.

Dimensions: P pairs, S targets a row (`seq_len`), V vocabulary. The reference is the frozen copy of the
parameters that the run started from: a moving average at decay one, which the Trainer keeps and saves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from dew.inputs.spec import Field, InputSpec
from dew.objectives.base import Aux, Batch, Mean, PathFilter, Prediction, Step, Variables, mean_loss, thaw
from dew.objectives.lm import LMObjective, Samples
from dew.objectives.lm.chunked import head_logits
from dew.objectives.lm.decoder import Decoder
from dew.objectives.rl.pairs import CHOSEN_KEY, CHOSEN_MASK_KEY, REJECTED_KEY, REJECTED_MASK_KEY
from dew.objectives.rl.preference_scores import PairScores
from dew.rl import LogRatios, preference_losses, response_log_ratios
from dew.rl.names import PreferenceName
from dew.rl.preference import check_law
from dew.telemetry.cost import StepCost


class DPOObjective(LMObjective):
    """Make the chosen response of each pair likelier than the rejected one, beside a frozen reference.

    The loss is `sum(l) / P` over the pairs in which both responses have a counted target; l is the law
    called `loss` of the log ratios of policy and reference. Both score without dropout.

    Args:
        model: a Linen module as `dew.objectives.lm.decoder.Decoder` describes it.
        seq_len: S, predictions a row; a row holds one id more.
        loss: `sigmoid`, `hinge` or `ipo`.
        beta: strength of the pull towards the reference.
        head_chunks: as in `LMObjective`.
        samples: the text preview; None shows none.
        pretrained: the complete tree that policy and reference start from.
        trainable: the parameters the optimizer moves, by path.

    Raises:
        ValueError: a model that is not causal or shorter than `seq_len`, an unknown loss, or a beta that is
            not positive.
    """

    artifact = PairScores
    unit = "pairs"
    ema_is_reference: ClassVar[bool] = True

    def __init__(
        self,
        model: Decoder,
        seq_len: int,
        *,
        loss: PreferenceName = "sigmoid",
        beta: float = 0.1,
        head_chunks: int = 4,
        samples: Samples | None = None,
        pretrained: Variables | None = None,
        trainable: PathFilter | None = None,
    ) -> None:
        super().__init__(
            model,
            seq_len,
            ema_decay=1.0,
            head_chunks=head_chunks,
            samples=samples,
            pretrained=pretrained,
            trainable=trainable,
            token_accuracy=False,
        )
        check_law(loss, beta)
        self.law: PreferenceName = loss
        self.beta = beta
        self.inputs = InputSpec(Field(CHOSEN_KEY, (seq_len + 1,)))

    def loss(self, params: Variables, batch: Batch, step: Step) -> tuple[Mean, Aux[Variables]]:
        """Summed losses and count of the pairs; beside them what the policy makes of the pairs.

        Metrics: `accuracy`, how often the chosen response has the higher implicit reward (beta times its log
        ratio); `margin`, the mean difference of the two; `chosen_reward` and `rejected_reward`.

        Raises:
            ValueError: no reference in `step`, or rows that are not `seq_len` + 1 wide.
        """
        chosen, rejected = self.log_ratios(params, batch, step)
        counted = _counted(chosen, rejected)
        losses = preference_losses(chosen, rejected, loss=self.law, beta=self.beta)
        pairs = jnp.sum(counted)

        def mean(values: jax.Array) -> jax.Array:
            return mean_loss(Mean(jnp.sum(jnp.where(counted > 0, values, 0)), pairs))[0]

        high, low = self.beta * chosen.total, self.beta * rejected.total
        metrics = {
            "accuracy": mean((high > low).astype(jnp.float32)),
            "margin": mean(high - low),
            "chosen_reward": mean(high),
            "rejected_reward": mean(low),
        }
        metrics = {name: jax.lax.stop_gradient(value) for name, value in metrics.items()}
        return Mean(jnp.sum(jnp.where(counted > 0, losses, 0)), pairs), Aux(metrics)

    def log_ratios(self, params: Variables, batch: Batch, step: Step) -> tuple[LogRatios, LogRatios]:
        """The log ratios of the chosen and of the rejected responses, [P] each."""
        rows, mask = self._rows(batch)
        current = self.per_token_log_probs(params, rows)
        fixed = jax.lax.stop_gradient(self.per_token_log_probs(_reference(step), rows))
        return _sides(response_log_ratios(current, fixed, mask))

    def evaluate(self, params: Variables, batch: Batch, step: Step) -> PairScores:
        """The losses, likelihoods, rewards and divergences of every pair under the live weights."""
        rows, mask = self._rows(batch)
        now, before = self.token_scores(params, rows), self.token_scores(_reference(step), rows)
        chosen, rejected = _sides(response_log_ratios(-now.losses, -before.losses, mask))
        likelihood = jnp.sum(jnp.where(mask, -now.losses, 0), -1)
        divergence = self._divergence((params, now.hidden), (_reference(step), before.hidden), mask)
        return PairScores(
            losses=preference_losses(chosen, rejected, loss=self.law, beta=self.beta),
            weights=_counted(chosen, rejected),
            chosen_rewards=self.beta * chosen.total,
            rejected_rewards=self.beta * rejected.total,
            chosen_log_probs=likelihood[0::2],
            rejected_log_probs=likelihood[1::2],
            divergence=jnp.sum(divergence.reshape(-1, 2), -1),
            tokens=chosen.tokens + rejected.tokens,
        )

    def predict(
        self, params: Variables, batch: Batch, step: Step, *, train: bool, layers: Sequence[int] = ()
    ) -> tuple[Mean, Aux[Variables], Prediction]:
        """Refused: a pair's loss is no sum over tokens."""
        raise TypeError("DPOObjective scores pairs, so it has no predict; use token_scores for its policy")

    @property
    def batch_fields(self) -> tuple[str, ...]:
        """Both responses, and masks of their targets."""
        return (CHOSEN_KEY, CHOSEN_MASK_KEY, REJECTED_KEY, REJECTED_MASK_KEY)

    def count_units(self, batch: Batch) -> int:
        """The pairs of a batch."""
        return int(batch[CHOSEN_KEY].shape[0])

    def step_cost(self, batch: Batch) -> StepCost | None:
        """Both rows of every pair: the policy forward and backward, the reference forward."""
        pairs, width = batch[CHOSEN_KEY].shape
        return self.rows_cost(2 * pairs, width, trained=1, scored=1)

    def _rows(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Both rows of each pair as neighbours, so that a split by pairs splits them alike."""
        width = self.seq_len + 1
        for key in (CHOSEN_KEY, REJECTED_KEY):
            if batch[key].shape[1] != width:
                raise ValueError(
                    f"batch[{key!r}] has rows of {batch[key].shape[1]} ids; seq_len={self.seq_len} needs "
                    f"{width}"
                )
        rows = jnp.stack([batch[CHOSEN_KEY], batch[REJECTED_KEY]], 1).reshape(-1, width)
        mask = jnp.stack([batch[CHOSEN_MASK_KEY], batch[REJECTED_MASK_KEY]], 1).reshape(-1, width - 1)
        return rows, mask.astype(bool)

    def _divergence(
        self, policy: tuple[Variables, jax.Array], reference: tuple[Variables, jax.Array], mask: jax.Array
    ) -> jax.Array:
        """The sum over each row's counted slots of the exact KL(policy || reference), [2P] in nats."""

        def log_shares(weight: jax.Array, hidden: jax.Array) -> jax.Array:
            model = self.model
            logits = head_logits(hidden, weight, softcap=model.final_logit_softcap, precision=model.precision)
            return jax.nn.log_softmax(logits.astype(jnp.float32))

        weights = [self.model.head_weight(thaw(variables)) for variables, _ in (policy, reference)]

        def row(inputs: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
            now, before = log_shares(weights[0], inputs[0]), log_shares(weights[1], inputs[1])
            return jnp.sum(jnp.where(inputs[2], jnp.sum(jnp.exp(now) * (now - before), -1), 0))

        # Row by row: the logits of two policies over a large vocabulary are held for one row alone.
        return jax.lax.map(row, (policy[1], reference[1], mask))


def _sides(rows: LogRatios) -> tuple[LogRatios, LogRatios]:
    """The chosen and the rejected of rows in which the two of each pair are neighbours."""
    return (
        LogRatios(rows.total[0::2], rows.tokens[0::2]),
        LogRatios(rows.total[1::2], rows.tokens[1::2]),
    )


def _counted(chosen: LogRatios, rejected: LogRatios) -> jax.Array:
    return ((chosen.tokens > 0) & (rejected.tokens > 0)).astype(jnp.float32)


def _reference(step: Step) -> Any:
    if step.ema is None:
        raise ValueError(
            "step.ema=None: preferences are measured against the frozen copy that DPOObjective.ema keeps; "
            "train with the Trainer, or pass Step(ema=variables of the reference)"
        )
    return step.ema
