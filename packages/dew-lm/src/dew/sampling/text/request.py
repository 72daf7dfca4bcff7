"""One request from its arguments to its record: `generate`, and `Decoding` for who reads on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from dew.nn.inputs import ModelInputs
from dew.sampling.decoding.parts import LogitsTransform, Stopping
from dew.sampling.decoding.state import StepState
from dew.sampling.text import loop
from dew.sampling.text.components import Criteria, Transforms
from dew.sampling.text.config import Sampling
from dew.sampling.text.faults import refuse_undefined
from dew.sampling.text.operations import Cache, DecodeOps, DecoderState, read_prompts
from dew.sampling.text.placing import Placement
from dew.sampling.text.preparing import Asked, Checked, prepared
from dew.sampling.text.prompts import Prompts, bucket
from dew.sampling.text.record import Generation, response_ids
from dew.sampling.text.sample import Sample, first_draw
from dew.sampling.text.strategy import Draws, Strategy

if TYPE_CHECKING:
    from flax import linen as nn

type Array = jax.Array | np.ndarray


def generate(
    model: nn.Module,
    params: Mapping[str, Any],
    inputs: ModelInputs | Array,
    max_new_tokens: int,
    *,
    key: jax.Array | None = None,
    seed: int | None = None,
    sampling: Sampling = Sampling(),
    n: int = 1,
    logits: Sequence[LogitsTransform] | None = None,
    stopping: Sequence[Stopping] | None = None,
    strategy: Strategy | None = None,
) -> Generation:
    """Continue every prompt by at most `max_new_tokens` tokens, `n` times.

    A row's tokens follow from its prompt, its key and the policy alone. Row i draws with `fold_in(key, i)`;
    its continuation 0 with that key and continuation j with j folded into it, so a larger `n` adds draws and
    changes none. Sizes are rounded up to buckets before compiling: calls of many lengths share few
    executables.

    Where the weights lie on a mesh, the rows are split over its batch axes and the result stays there; rows
    that do not divide are filled up with copies that never draw. In a pool of processes over one mesh each
    process makes the same request with its own rows, as many on each, which `Generation.host` gives back to
    it; row i then is the i-th of all, process after process. A bad request of one is an error on all of them,
    before any device works.

    Args:
        model: a causal decoder with `decode`, `init_cache` and `head_weight`.
        params: the complete variables tree.
        inputs: integer rows `[B, P]`, or `ModelInputs` whose `attention_mask` marks the real tokens of rows
            of unequal length. Only real tokens count against the model's `max_seq_len`.
        max_new_tokens: N, the budget of a row.
        key: a typed key for the request, or an array `[B]` with the key of each row. `key` or `seed`, not
            both.
        seed: `seed=n` is `key=jax.random.key(n)`.
        sampling: the policy; its transforms are the chain and its `eos_id` the criterion, unless replaced.
        n: continuations of each prompt.
        logits: the whole chain of transforms, in order, in place of the policy's; `()` transforms nothing.
        stopping: criteria beside the policy's end token.
        strategy: how tokens are chosen: `Beam`, `Speculative`, one of your own; None is `Sample()`.

    Returns:
        `[B * n]` rows, the continuations of a prompt together.

    Raises:
        ValueError: an argument that breaks its rule, or another on another process, before anything is
            compiled.
        FloatingPointError: a row whose distribution is undefined (NaN, +inf, or no finite score).

    Example:
        >>> drawn = generate(model, variables, prompts, 32, seed=0, sampling=Sampling(temperature=0.8))
        >>> drawn.lengths
    """
    decoding = Decoding.prepare(
        model,
        params,
        inputs,
        max_new_tokens,
        key=key,
        seed=seed,
        sampling=sampling,
        n=n,
        logits=logits,
        stopping=stopping,
        strategy=strategy,
    )
    return decoding.record(decoding.draws())


@dataclass(frozen=True)
class Progress:
    """A continuation under way: its rows, its cache, and how many tokens it was asked for so far."""

    carry: loop.Carry
    cache: Cache
    drawn: int


@dataclass(frozen=True)
class Decoding:
    """A checked request whose prompts are read. `draws` runs its strategy.

    `begin` and `advance` draw one continuation bit by bit, as `Sample` draws it, for who reads on the way.

    Attributes:
        ops: the model's operations.
        prompts: the checked rows of this process.
        budget: N.
        n: continuations of each prompt.
        transform: the resolved chain.
        stopping: the resolved criteria.
        sampling: the policy, for its pad and end ids.
        strategy: chooses the tokens.
        placement: where the rows lie.
        decoder: the model after the prompts.
        state: the rows before their first draw.
    """

    ops: DecodeOps
    prompts: Prompts
    budget: int
    n: int
    transform: Transforms
    stopping: Criteria
    sampling: Sampling
    strategy: Strategy
    placement: Placement
    decoder: DecoderState
    state: StepState

    @classmethod
    def prepare(
        cls,
        model: Any,
        params: Mapping[str, Any],
        inputs: ModelInputs | Array,
        max_new_tokens: int,
        *,
        key: jax.Array | None = None,
        seed: int | None = None,
        sampling: Sampling = Sampling(),
        n: int = 1,
        logits: Sequence[LogitsTransform] | None = None,
        stopping: Sequence[Stopping] | None = None,
        strategy: Strategy | None = None,
    ) -> Decoding:
        """Check a request as `generate` takes it, and read its prompts into the cache."""
        asked = Asked(
            model=model,
            params=params,
            inputs=inputs,
            max_new_tokens=max_new_tokens,
            key=key,
            seed=seed,
            sampling=sampling,
            n=n,
            logits=logits,
            stopping=stopping,
            strategy=Sample() if strategy is None else strategy,
        )
        return cls.of(asked, prepared(asked))

    @classmethod
    def of(cls, asked: Asked, checked: Checked) -> Decoding:
        """Read the prompts of a checked request."""
        model, place, prompts = asked.model, checked.placement, checked.prompts
        longest = int(model.max_seq_len)
        slots = bucket(asked.max_new_tokens, longest)
        ops = DecodeOps(model, asked.params)
        with place.entered():
            decoder, state = read_prompts(
                ops,
                place.put(prompts.packed),
                place.put(prompts.lengths.astype(np.int32)),
                place.put_keys(checked.keys),
                place.put_active(),
                np.int32(asked.sampling.pad_id),
                np.int32(asked.max_new_tokens),
                capacity=min(prompts.packed.shape[1] + slots, longest),
                slots=slots,
                keep_states=getattr(asked.strategy, "reads_prompt_states", False),
            )
        return cls(
            ops=ops,
            prompts=prompts,
            budget=int(asked.max_new_tokens),
            n=int(asked.n),
            transform=Transforms(checked.chain),
            stopping=Criteria(checked.criteria),
            sampling=asked.sampling,
            strategy=asked.strategy,
            placement=place,
            decoder=decoder,
            state=state,
        )

    def draws(self) -> Draws:
        """Run the strategy."""
        with self.placement.entered():
            return self.strategy(
                self.decoder, self.state, self.ops, self.transform, self.stopping, self.budget, self.n
            )

    def begin(self, continuation: int = 0) -> Progress:
        """Draw the first token of one continuation of every prompt."""
        with self.placement.entered():
            carry = first_draw(self.decoder, self.state, self.transform, self.stopping, continuation)
        return Progress(carry, self.decoder.cache, 1)

    def advance(self, progress: Progress, count: int | None = None) -> Progress:
        """Draw `count` more tokens, or all that are left, of the rows that have not ended."""
        until = self.budget if count is None else min(progress.drawn + count, self.budget)
        if until == progress.drawn:
            return progress
        with self.placement.entered():
            carry, cache = loop.advance(
                self.ops, progress.carry, progress.cache, self.transform, self.stopping, np.int32(until)
            )
        return replace(progress, carry=carry, cache=cache, drawn=until)

    def responses(self, progress: Progress) -> list[list[int]]:
        """The ids drawn so far for each row, without an end token, on the host.

        Raises:
            FloatingPointError: a row whose distribution was undefined.
        """
        state = progress.carry.state
        refuse_undefined(progress.carry.fault, state.step)
        return response_ids(state.tokens[:, state.prompt_width :], state.step, self.sampling.eos_ids)

    def finished(self, progress: Progress) -> bool:
        """Whether every row has ended or reached the budget."""
        return progress.drawn >= self.budget or not np.asarray(progress.carry.state.active).any()

    def record(self, draws: Draws) -> Generation:
        """The record of finished continuations.

        Raises:
            FloatingPointError: a row whose distribution was undefined.
        """
        self._refuse_undefined(draws)
        given = self.placement.put(self.prompts.given)
        if self.placement.mesh is None:
            parts = _joined(given, draws, self.n, self.budget)
            tokens, behavior, raw = jax.device_put(parts, self.state.tokens.sharding)
        else:
            with self.placement.entered():
                tokens, behavior, raw = _joined_on_mesh(given, draws, n=self.n, budget=self.budget)
        return Generation(
            tokens=tokens,
            lengths=draws.lengths,
            terminated=draws.terminated,
            behavior_log_probs=behavior,
            raw_log_probs=raw,
            rows=self.prompts.rows * self.n,
            prompt_width=self.prompts.width,
            eos_ids=self.sampling.eos_ids,
        )

    def _refuse_undefined(self, draws: Draws) -> None:
        """Raise on every process where a row of any of them had no distribution."""
        if not self.placement.pooled:
            refuse_undefined(draws.faults, draws.lengths)
            return
        from dew.training.distributed import to_host

        refuse_undefined(*to_host((draws.faults, draws.lengths)))


def _joined(given: Array, draws: Draws, n: int, budget: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rows of a record: prompts as they were given with `budget` drawn tokens, and both likelihoods.

    On the host, where the draws are done anyway: on the device, every length of prompt or budget would be a
    program of its own.
    """
    drawn, behavior, raw = jax.device_get((draws.tokens, draws.behavior_log_probs, draws.raw_log_probs))
    prompts = np.repeat(np.asarray(given, np.int32), n, axis=0)
    tokens = np.concatenate([prompts, drawn[:, :budget]], axis=1)
    return tokens, behavior[:, :budget], raw[:, :budget]


@partial(jax.jit, static_argnames=("n", "budget"))
def _joined_on_mesh(
    given: jax.Array, draws: Draws, *, n: int, budget: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`_joined` where the rows lie on a mesh and stay there."""
    prompts = jnp.repeat(jnp.asarray(given, jnp.int32), n, axis=0)
    tokens = jnp.concatenate([prompts, draws.tokens[:, :budget]], axis=1)
    return tokens, draws.behavior_log_probs[:, :budget], draws.raw_log_probs[:, :budget]
