"""Next-token training of a decoder.

Dimensions: B rows, S targets a row (`seq_len`), D model width, V vocabulary. With w the target weights and
`l = -log p(token i + 1 | tokens up to i)`, the loss is `sum(w (l + z_loss log^2 Z)) / sum(w)`, and a mixture
of experts adds the terms of `dew.objectives.lm.routing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import jax
import jax.numpy as jnp
import optax

from dew.artifacts import Artifacts, TextSamples, TokenScores
from dew.data.chat.roles import Role
from dew.inputs.spec import Field, InputSpec
from dew.nn.stack import DecoderBank
from dew.objectives.base import (
    Aux,
    Batch,
    EMASpec,
    Mean,
    PathFilter,
    Prediction,
    Step,
    Variables,
    freeze,
    mean_loss,
    thaw,
    under,
)
from dew.objectives.lm.batch import POSITIONS_KEY, ROLES_KEY, SEGMENTS_KEY, TEXT_KEY
from dew.objectives.lm.chunked import head_logits
from dew.objectives.lm.config import IndexerTraining
from dew.objectives.lm.decoder import Decoder, bank_of, check_decoder
from dew.objectives.lm.depths import DepthStatistics, DepthTerm, depth_mean
from dew.objectives.lm.indexing import IndexedStatistics, IndexerTerm, of_indexer
from dew.objectives.lm.logits import check_clippable, largest_logit
from dew.objectives.lm.pretrained import initial_variables
from dew.objectives.lm.routing import LMStatistics as LMStatistics
from dew.objectives.lm.routing import RouterTerms, counted
from dew.objectives.lm.samples import UNFILTERED, Samples, draw_samples
from dew.objectives.lm.scorer import TokenScorer
from dew.objectives.lm.scores import Scores
from dew.sampling.text.checks import check_model
from dew.sampling.text.config import Sampling
from dew.telemetry.cost import StepCost

if TYPE_CHECKING:
    from dew.inference.text import Processor, TextGeneration
    from dew.training.config import MeshSpec
    from dew.training.state import TrainState


class LMObjective(TokenScorer):
    """Train a decoder to predict every next token, and score text with it.

    Args:
        model: a Linen module as `dew.objectives.lm.decoder.Decoder` describes it.
        seq_len: S, predictions a row; a batch holds one id more.
        ema_decay: of the moving average; None keeps none, and 1 a frozen copy.
        pad_id: targets of this id do not count.
        head_chunks: at most so many tiles over the vocabulary, so that no [B, S, V] logits are held. A tile
            is never cut so narrow that it saves no memory: small vocabularies keep one.
        samples: the text preview; None shows none.
        pretrained: start from this complete variables tree.
        balance_rate: how far each commit moves every router's biases against its load (arXiv 2408.15664);
            needs a mixture with `bias=True`. None leaves them where they are.
        aux_loss_alpha: weight of the experts' balance loss; None adds none.
        seq_aux: form the balance loss within each row (arXiv 2405.04434) instead of over the whole step
            (arXiv 2101.03961).
        router_z_loss: weight of the routers' mean squared log partition (arXiv 2202.08906).
        loss_role: train and score only the targets of this role; rows must say whose each token is
            (`text_roles`). None trains all.
        mtp_weight: weight of the mean loss of the model's prediction depths (arXiv 2412.19437); needs a model
            with `num_nextn_predict_layers`. None leaves them out.
        z_loss: coefficient of the squared log partition of every counted prediction.
        qk_stats: report the largest attention logit of every head, which the muonclip optimizer clips by, and
            the largest of all as the metric `max_logit`.
        indexer: train the lightning indexer of a model whose mixer has one (arXiv 2512.02556, section 2.1.1)
            to choose the keys that attention weighs most: the divergence of its distribution from the
            attention's, a mean over tokens and layers, is reported as `indexer_kl`. `IndexerTraining(
            "warmup")` trains it alone, beside dense attention: the rest is kept under `frozen`, no token is
            scored, and `pretrained` may lack the indexer. `IndexerTraining("sparse")` trains everything on
            the selected keys: the cross entropy moves all but the indexer, and the divergence the indexer
            alone.
        trainable: the parameters the optimizer moves, by path; the rest is kept under `frozen`.
        token_accuracy: report how often the best id is the target; False saves the comparison over all
            logits.

    Raises:
        ValueError: a model that is not causal or shorter than `seq_len`, a number out of its range, samples
            that end with a token the model does not have, or an argument that is not supported yet.
    """

    artifact = TokenScores
    unit = "tokens"
    ema_is_reference: ClassVar[bool] = False
    """Whether the average is a frozen reference, so that previews show the live weights."""

    def __init__(
        self,
        model: Decoder,
        seq_len: int,
        *,
        ema_decay: float | None = 0.999,
        pad_id: int | None = None,
        head_chunks: int = 4,
        samples: Samples | None = None,
        pretrained: Variables | None = None,
        balance_rate: float | None = None,
        aux_loss_alpha: float | None = None,
        seq_aux: bool = True,
        loss_role: Role | None = None,
        mtp_weight: float | None = None,
        z_loss: float = 0.0,
        router_z_loss: float = 0.0,
        qk_stats: bool = False,
        indexer: IndexerTraining | None = None,
        trainable: PathFilter | None = None,
        token_accuracy: bool = True,
    ) -> None:
        check_decoder(model, seq_len)
        if qk_stats:
            check_clippable(model)
        self.router_terms = RouterTerms(
            balance_rate=balance_rate,
            aux_loss_alpha=aux_loss_alpha,
            seq_aux=seq_aux,
            router_z_loss=router_z_loss,
        )
        self.router_terms.check(model)
        self.depth_term = DepthTerm(mtp_weight)
        self.depth_term.check(model)
        self.indexer_term = IndexerTerm(indexer)
        self.indexer_term.check(
            model,
            {
                "trainable": trainable,
                "balance_rate": balance_rate,
                "aux_loss_alpha": aux_loss_alpha,
                "router_z_loss": router_z_loss,
                "mtp_weight": mtp_weight,
                "z_loss": z_loss,
                "qk_stats": qk_stats,
                "loss_role": None if loss_role is None else str(loss_role),
            },
        )
        if ema_decay is not None and not 0 <= ema_decay <= 1:
            raise ValueError(f"ema_decay={ema_decay} must lie in [0, 1], or be None for no average")
        if head_chunks < 1:
            raise ValueError(f"head_chunks={head_chunks} must be at least 1")
        if z_loss < 0:
            raise ValueError(f"z_loss={z_loss} must be 0 or more")
        if samples is not None:
            check_model(model, samples.sampling)
        self.model = model
        self.seq_len = seq_len
        self.pad_id = pad_id
        self.head_chunks = head_chunks
        self.samples = samples
        self.z_loss = z_loss
        self.qk_stats = qk_stats
        self.trainable = of_indexer if self.indexer_term.alone else trainable
        self.token_accuracy = token_accuracy
        self.loss_role = None if loss_role is None else Role(loss_role)
        self.pretrained = pretrained
        self.inputs = InputSpec(Field(TEXT_KEY, (seq_len + 1,)))
        if ema_decay is not None:
            self.ema = EMASpec(optax.constant_schedule(ema_decay), under("params"))

    @property
    def batch_fields(self) -> tuple[str, ...]:
        """`text`, and with `loss_role` whose each token is."""
        return (TEXT_KEY,) if self.loss_role is None else (TEXT_KEY, ROLES_KEY)

    @property
    def reports_logits(self) -> bool:
        """Whether `qk_stats` was asked for."""
        return self.qk_stats

    @property
    def bank_sites(self) -> tuple[DecoderBank, ...]:
        """The model's layers, if it says where they stand."""
        bank = bank_of(self.model)
        return () if bank is None else (bank,)

    def held_variables(self) -> Variables | None:
        """The tree a continued training starts from, or None."""
        return self.pretrained

    def init(self, key: jax.Array, variables: Variables | None = None) -> Variables:
        """Draw the variables, or take the held ones; then set aside what `trainable` rejects.

        Raises:
            ValueError: held variables that do not fit the model.
        """
        held = self.pretrained if variables is None else variables
        fresh = of_indexer if self.indexer_term.alone else None
        whole = initial_variables(self.model, key, held, fresh)
        return whole if self.trainable is None else freeze(whole, self.trainable)

    def loss(
        self, params: Variables, batch: Batch, step: Step
    ) -> tuple[Mean | LMStatistics | DepthStatistics | IndexedStatistics, Aux[Variables]]:
        """Summed loss and weight of the counted targets, and the routers' terms where the run adds some.

        A metric `token_accuracy` stands beside them, with `balance_rate` the experts' loads as effects, with
        `qk_stats` the largest attention logits, with `mtp_weight` the metric `mtp_loss`, and with `indexer`
        the metric `indexer_kl`, which in a warm-up is all there is.
        """
        scores = self._batch_scores(
            params,
            batch,
            step,
            train=True,
            routing=self.router_terms.needed,
            qk_stats=self.qk_stats,
            depths=self.depth_term.needed,
            indexer=self.indexer_term.needed,
        )
        stats, aux = self._statistics(scores)
        if scores.routing is not None:
            if self.router_terms.balance_rate is not None:
                aux = replace(aux, effects=counted(scores.routing))
            stats = self.router_terms.statistics(stats, scores.routing, self._top_k)
        if scores.depths is not None:
            stats = self.depth_term.statistics(stats, scores.depths)
            aux = replace(aux, metrics={**aux.metrics, "mtp_loss": depth_mean(stats.depths)})
        if scores.indexer is None:
            return stats, aux
        others = {} if self.indexer_term.alone else aux.metrics
        metrics = {**others, "indexer_kl": mean_loss(scores.indexer.mean)[0]}
        return self.indexer_term.statistics(stats, scores.indexer), replace(aux, metrics=metrics)

    def reduce_loss(
        self, stats: Mean | LMStatistics | DepthStatistics | IndexedStatistics
    ) -> tuple[jax.Array, jax.Array]:
        """The loss and whether anything counts: targets, or what else a term counts."""
        if isinstance(stats, IndexedStatistics):
            value, active = self.reduce_loss(stats.rest)
            further, counts = self.indexer_term.reduced(stats.divergence)
            return value + further, active | counts
        if isinstance(stats, DepthStatistics):
            value, active = self.reduce_loss(stats.rest)
            further, counts = self.depth_term.reduced(stats.depths)
            return value + further, active | counts
        if isinstance(stats, LMStatistics):
            return self.router_terms.reduced(stats, self._top_k)
        return super().reduce_loss(stats)

    @property
    def reduces_means_to_ratios(self) -> bool:
        """True: router terms have statistics of their own type."""
        return type(self).reduce_loss is LMObjective.reduce_loss

    def apply_effects(self, variables: Variables, effects: Variables) -> Variables:
        """The routers' biases, moved by the loads of a committed window."""
        return self.router_terms.moved(variables, effects)

    def check_mesh(self, mesh: MeshSpec) -> None:
        """Refuse a sequence axis that does not cut `seq_len` positions evenly.

        Raises:
            ValueError: with lengths that it cuts.
        """
        mesh.check_positions("seq_len", self.seq_len)

    def step_cost(self, batch: Batch) -> StepCost | None:
        """The model's own count of its rows, forward and backward.

        None where the model has no count, a part of it is not trained (then less is computed), or the batch
        has other fields than this objective's own.
        """
        if TEXT_KEY not in batch:
            return None
        return self.rows_cost(*batch[TEXT_KEY].shape, trained=1, depths=self.depth_term.needed)

    def predict(
        self, params: Variables, batch: Batch, step: Step, *, train: bool, layers: Sequence[int] = ()
    ) -> tuple[Mean, Aux[Variables], Prediction]:
        """The loss with the whole [B, S, V] logits, the weights and the output states of `layers` behind it.

        Raises:
            ValueError: the run adds terms of routers, prediction depths or indexers to its loss, which have
                masses of their own and no share in a token's; or `layers` names one that the model does not
                have.
        """
        if self.router_terms.in_loss:
            raise ValueError(
                "predict scores tokens, and aux_loss_alpha and router_z_loss are no token's loss; "
                "unset them, and balance with balance_rate instead"
            )
        if self.indexer_term.needed:
            raise ValueError(
                "predict scores tokens, and indexer trains by a divergence that is no token's loss; unset it"
            )
        if self.depth_term.needed:
            raise ValueError(
                "predict scores tokens once, and mtp_weight adds their loss at prediction depths with masses "
                "of their own; unset it"
            )
        balanced = train and self.router_terms.balance_rate is not None
        scores = self._batch_scores(
            params,
            batch,
            step,
            train=train,
            routing=balanced,
            qk_stats=train and self.qk_stats,
            layers=layers,
        )
        logits = head_logits(
            scores.hidden,
            self.model.head_weight(thaw(params)),
            softcap=self.model.final_logit_softcap,
            precision=self.model.precision,
        )
        stats, aux = self._statistics(scores)
        if scores.routing is not None:
            aux = replace(aux, effects=counted(scores.routing))
        prediction = Prediction(
            logits=logits, losses=self._terms(scores), weights=scores.weights, hidden=scores.layers
        )
        return stats, aux, prediction

    def evaluate(self, params: Variables, batch: Batch, step: Step) -> Artifacts:
        """The `TokenScores` of the whole batch, with the average's weights where there is one."""
        scores = self._batch_scores(params if step.ema is None else step.ema, batch, step, train=False)
        return TokenScores(losses=scores.losses, weights=scores.weights, correct=scores.correct)

    def preview(
        self, params: Variables, batch: Batch, step: Step, *, scored: Any = None
    ) -> TextSamples | None:
        """Continue the configured prompts once; every process draws, process zero decodes.

        Returns:
            The texts, or None without `samples` and on the other processes.
        """
        if self.samples is None:
            return None
        live = params if step.ema is None or self.ema_is_reference else step.ema
        return draw_samples(self.model, thaw(live), self.samples, key=step.key)

    def policy(self, params: Variables, sampling: Sampling = UNFILTERED) -> TextGeneration:
        """The model over `params` as a generation task; by default it draws from the model itself."""
        from dew.inference.text import TextGeneration

        return TextGeneration(self.model, thaw(params), sampling=sampling)

    def pipeline(
        self, state: TrainState, *, ema: bool = True, processor: Processor | None = None
    ) -> TextGeneration:
        """The trained model as a generation task that samples as this objective's previews do.

        Args:
            state: of the run.
            ema: take the averaged weights; False takes the live ones.
            processor: encodes text requests and decodes results.

        Raises:
            ValueError: `ema` is True and the run keeps no average.
        """
        from dew.inference.text import TextGeneration

        variables = state.averaged if ema and not self.ema_is_reference else state.params
        samples = self.samples
        return TextGeneration(
            self.model,
            thaw(variables),
            processor=processor,
            sampling=samples.sampling if samples else UNFILTERED,
            max_new_tokens=samples.max_new_tokens if samples else None,
        )

    def count_units(self, batch: Batch) -> int:
        """The predictions of a batch, counted or not."""
        rows, ids = batch[TEXT_KEY].shape
        return int(rows * (ids - 1))

    @property
    def _top_k(self) -> int:
        return cast("int", getattr(self.model, "mixture").top_k)  # noqa: B009 - no member of `Decoder`

    def _batch_scores(
        self,
        params: Variables,
        batch: Batch,
        step: Step,
        *,
        train: bool,
        routing: bool = False,
        qk_stats: bool = False,
        depths: bool = False,
        indexer: bool = False,
        layers: Sequence[int] = (),
    ) -> Scores:
        tokens = batch[TEXT_KEY]
        if tokens.shape[1] != self.seq_len + 1:
            raise ValueError(
                f"batch[{TEXT_KEY!r}] has rows of {tokens.shape[1]} ids; "
                f"seq_len={self.seq_len} needs {self.seq_len + 1}"
            )
        if self.loss_role is not None and ROLES_KEY not in batch:
            raise ValueError(
                f"loss_role={self.loss_role.name.lower()} needs batch[{ROLES_KEY!r}], whose each token "
                "is; read "
                "data:chat-messages, set data.role, or leave loss_role out"
            )
        return self.token_scores(
            params,
            tokens,
            train=train,
            rngs={"dropout": step.key} if train else None,
            segment_ids=batch.get(SEGMENTS_KEY),
            positions=batch.get(POSITIONS_KEY),
            roles=batch.get(ROLES_KEY),
            routing=routing,
            qk_stats=qk_stats,
            depths=depths,
            indexer=indexer,
            layers=layers,
        )

    def _terms(self, scores: Scores) -> jax.Array:
        if self.z_loss == 0:
            return scores.losses
        return scores.losses + self.z_loss * jnp.square(scores.log_partition)

    def _statistics(self, scores: Scores) -> tuple[Mean, Aux[Variables]]:
        mass = jnp.sum(scores.weights)
        metrics: dict[str, jax.Array] = {}
        if scores.correct is not None:
            hits = jnp.sum(jnp.where(scores.correct, scores.weights, 0))
            metrics["token_accuracy"] = mean_loss(Mean(hits, mass))[0]
        if scores.qk_stats is not None:
            metrics["max_logit"] = largest_logit(scores.qk_stats)
        stats = Mean(jnp.sum(self._terms(scores) * scores.weights), mass)
        return stats, Aux(metrics, qk_stats=scores.qk_stats)
