"""How likely a decoder holds the tokens of rows, and what finding out costs.

Dimensions: B rows, S predictions a row, D model width.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp

from dew.data.chat.roles import Role
from dew.nn.moe.router import ROUTING
from dew.nn.tokens import merged, parted
from dew.objectives.base import Mean, Objective, PathFilter, Variables, thaw
from dew.objectives.lm.chunked import chunked_cross_entropy, sensible_chunks
from dew.objectives.lm.decoder import Decoder
from dew.objectives.lm.depths import DepthScores, DepthStatistics, depth_weights, with_reports
from dew.objectives.lm.indexing import INDEXER, IndexedStatistics, indexer_scores
from dew.objectives.lm.layers import INTERMEDIATES, captured, capturing, check_layers
from dew.objectives.lm.logits import QK, logits_of
from dew.objectives.lm.replay import Record, counted_ids, router_rows
from dew.objectives.lm.routing import LMStatistics, loads_of
from dew.objectives.lm.scores import Scores, left_aligned, original_alignment, plain_ids, target_weights
from dew.objectives.lm.support import support_log_probs
from dew.telemetry.cost import StepCost

if TYPE_CHECKING:
    from dew.nn.inputs import ModelInputs


class TokenScorer(Objective[Mean | LMStatistics | DepthStatistics | IndexedStatistics, Variables]):
    """The part of a decoder's objective that scores rows of ids; the loss is its subclasses'.

    Attributes:
        model: a Linen module as `dew.objectives.lm.decoder.Decoder` describes it.
        pad_id: targets of this id do not count; None counts all.
        head_chunks: at most so many tiles over the vocabulary.
        token_accuracy: compare the best id with the target.
        loss_role: only targets of this role count; None counts all.
        trainable: the parameters that are trained; None for all.
    """

    model: Decoder
    pad_id: int | None
    head_chunks: int
    token_accuracy: bool
    loss_role: Role | None = None
    trainable: PathFilter | None

    def token_scores(
        self,
        params: Variables,
        tokens: jax.Array,
        train: bool = False,
        rngs: dict[str, jax.Array] | None = None,
        segment_ids: jax.Array | None = None,
        positions: jax.Array | None = None,
        routing: bool = False,
        depths: bool = False,
        roles: jax.Array | None = None,
        qk_stats: bool = False,
        indexer: bool = False,
        layers: Sequence[int] = (),
        routes: Record | None = None,
    ) -> Scores:
        """Score the targets of [B, S + 1] ids.

        Args:
            params: the complete variables, split by `freeze` or whole.
            tokens: [B, S + 1].
            train: whether dropout acts.
            rngs: keys of the model's random streams.
            segment_ids: [B, S + 1], the document of each token, from 1; 0 is padding, which is no target.
                Attention stays inside a document, and the last token of one does not predict the first of
                the next.
            positions: [B, S + 1], for the rotation; None counts from each row's start.
            routing: report every router's load over the ids that are neither `pad_id` nor of segment 0.
            qk_stats: report the largest attention logit of every head.
            depths: score the model's prediction depths too.
            indexer: compare the indexers' distributions with the attention's.
            layers: whose output states to keep, by index.
            routes: the experts of every id, [B, S + 1, layers, top_k], and the ids they are known for,
                [B, S + 1] booleans or None for all. Covered ids go to these experts, weighted by the scores
                that the routers give them now, and the others where the routers send them; see
                `dew.nn.moe.Routes`.
            roles: [B, S + 1], whose each token is: with `loss_role`, only its targets count. None counts all.

        Raises:
            ValueError: `routing` or `routes` of a model without experts, `routes` of another shape or type,
                `depths` of one without prediction depths, `indexer` of one without an indexer, `qk_stats` of
                a model that reports no logits, or `layers` that the model does not have or that a mesh with
                stages spreads over devices.
        """
        check_layers(self.model, layers)
        told: dict[str, Any] = {}
        if routing or routes is not None:
            if getattr(self.model, "mixture", None) is None:
                named = "routing=True" if routing else "routes"
                raise ValueError(f"{named} needs a model with a mixture of experts; leave it out")
            told["routing"] = router_rows(
                self.model, tokens, pad_id=self.pad_id, segment_ids=segment_ids, routes=routes
            )
        if depths and not getattr(self.model, "num_nextn_predict_layers", 0):
            raise ValueError("depths=True needs a model with prediction depths; leave it at False")
        variables = thaw(params)
        asked = ((ROUTING, routing), (QK, qk_stats), (INDEXER, indexer), (INTERMEDIATES, bool(layers)))
        opened = [name for name, wanted in asked if wanted]
        positions = None if positions is None else positions[:, :-1]
        documents = None if segment_ids is None else segment_ids[:, :-1]
        read = partial(
            self.model.apply,
            variables,
            tokens[:, :-1],
            train=train,
            positions=positions,
            segment_ids=documents,
            rngs=rngs,
            mutable=opened or False,
            capture_intermediates=capturing(layers) if layers else False,
        )
        result: Any = read(method="hidden_states", **told)
        hidden, sown = result if opened else (result, {})
        ahead: Any = read(hidden, method="mtp_hidden_states", **told) if depths else ()
        if depths and opened:
            ahead, more = ahead
            sown = with_reports(sown, more)
        found = None
        if indexer:
            counted = counted_ids(tokens, pad_id=self.pad_id, segment_ids=segment_ids)
            found = indexer_scores(sown, counted, documents)
        losses, log_partition, correct = self._head(variables, hidden, tokens[:, 1:])
        weights = target_weights(
            tokens, pad_id=self.pad_id, segment_ids=segment_ids, roles=roles, loss_role=self.loss_role
        )
        return Scores(
            losses,
            weights,
            correct,
            hidden,
            log_partition,
            routing=loads_of(sown) if routing else None,
            qk_stats=logits_of(sown, getattr(self.model, "mixer", None)) if qk_stats else None,
            layers=captured(sown, layers),
            depths=self._depths(variables, ahead, tokens[:, 1:], weights, documents) if depths else None,
            indexer=found,
        )

    def per_token_log_probs(
        self,
        params: Variables,
        tokens: jax.Array | ModelInputs,
        *,
        left_padding: jax.Array | None = None,
    ) -> jax.Array:
        """Log likelihood [B, S] of every next token under the model itself.

        Args:
            params: the complete variables.
            tokens: [B, S + 1] ids, or inputs of which the ids are read.
            left_padding: [B], how many padding tokens stand before each row's text. The text is scored from
                position 0, and slots whose input is padding are 0.

        Raises:
            ValueError: inputs that carry an attention mask or conditions of their own.
        """
        ids = plain_ids(tokens)
        if left_padding is None:
            return -self.token_scores(params, ids).losses
        scored = -self.token_scores(params, left_aligned(ids, left_padding)).losses
        return original_alignment(scored, left_padding)

    def sampled_log_probs(
        self,
        params: Variables,
        scores: Scores,
        tokens: jax.Array,
        support: tuple[jax.Array, jax.Array] | None = None,
        temperature: float = 1.0,
    ) -> jax.Array:
        """Log likelihood [B, S] of every next token under the policy that drew it.

        Args:
            params: the complete variables.
            scores: `token_scores` of the same `tokens`.
            tokens: [B, S + 1].
            support: for samplers that filtered, the ids they kept and for each the column of `tokens` it was
                kept for, [B, C] both; a target with entries is renormalized over them
                (`dew.objectives.lm.support`). None leaves the whole vocabulary.
            temperature: divides the capped logits.

        Raises:
            ValueError: a `support` of other shapes, or a temperature that is not positive.
        """
        variables = thaw(params)
        unfiltered = -scores.losses
        if temperature != 1.0:
            unfiltered = -self._head(variables, scores.hidden, tokens[:, 1:], temperature=temperature)[0]
        if support is None:
            return unfiltered
        return support_log_probs(
            (scores.log_partition - scores.losses) / temperature,
            scores.hidden,
            self.model.head_weight(variables),
            tokens,
            support,
            unfiltered=unfiltered,
            softcap=self.model.final_logit_softcap,
            temperature=temperature,
            precision=self.model.precision,
        )

    def rows_cost(
        self, rows: int, width: int, *, trained: int, scored: int = 0, depths: bool = False
    ) -> StepCost | None:
        """Model FLOPs of passes over `rows` of `width` ids.

        Args:
            rows: how many.
            width: ids of a row, one more than its predictions.
            trained: passes forward and backward.
            scored: passes forward alone, as of a reference.
            depths: whether the passes compute the model's prediction depths.
        """
        count = getattr(self.model, "forward_macs", None)
        if count is None or self.trainable is not None:
            return None
        passes = 3 * trained + scored
        macs = count(width - 1)
        if depths:
            macs += cast("Any", self.model).depths_macs(width - 1)
        return StepCost(
            flops=2.0 * passes * rows * macs,
            dtype=jnp.dtype(getattr(self.model, "dtype", jnp.float32)).name,
            counts="the keys a query may see (causal half, windows), whole rows without regard to documents "
            "and padding, of a mixture the chosen experts",
        )

    def _depths(
        self,
        variables: Variables,
        states: Sequence[jax.Array],
        targets: jax.Array,
        weights: jax.Array,
        segment_ids: jax.Array | None,
    ) -> DepthScores:
        losses = [self._head(variables, each, targets)[0] for each in states]
        return DepthScores(jnp.stack(losses), depth_weights(weights, len(losses), segment_ids))

    def _head(
        self, variables: Variables, hidden: jax.Array, targets: jax.Array, *, temperature: float = 1.0
    ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        weight = self.model.head_weight(variables)
        scored = chunked_cross_entropy(
            merged(hidden),
            weight,
            merged(targets),
            chunks=sensible_chunks(weight.shape[1], self.head_chunks),
            softcap=self.model.final_logit_softcap,
            temperature=temperature,
            precision=self.model.precision,
            correct=self.token_accuracy,
        )
        correct = scored.correct
        return (
            parted(scored.losses, *targets.shape),
            parted(scored.log_partition, *targets.shape),
            None if correct is None else parted(correct, *targets.shape),
        )
