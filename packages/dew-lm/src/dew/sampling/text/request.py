"""One request from its arguments to its record: `generate`, and `Decoding` for who reads on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from dew.nn.inputs import ModelInputs
from dew.sampling.decoding import LogitsTransform, Sample, Stopping, Strategy
from dew.sampling.text import loop
from dew.sampling.text.config import Sampling
from dew.sampling.text.prompts import Prompts, bucket, read_prompts
from dew.sampling.text.record import Generation, response_ids

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
    executables. In a pool of processes every process passes the same request.

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
        strategy: None or `Sample()`.

    Returns:
        `[B * n]` rows, the continuations of a prompt together.

    Raises:
        ValueError: an argument that breaks its rule, before anything is compiled.
        FloatingPointError: a row whose distribution is undefined (NaN, +inf, or no finite score).

    Example:
        >>> drawn = generate(model, variables, prompts, 32, seed=0, sampling=Sampling(temperature=0.8))
        >>> drawn.lengths
    """
    if not is_count(n):
        raise ValueError(f"n={n} must be a positive integer: the continuations of each prompt")
    decoding = Decoding.prepare(
        model,
        params,
        inputs,
        max_new_tokens,
        key=key,
        seed=seed,
        sampling=sampling,
        logits=logits,
        stopping=stopping,
        strategy=strategy,
    )
    return decoding.record([decoding.advance(decoding.begin(each)).carry for each in range(n)])


@dataclass(frozen=True)
class Progress:
    """A continuation under way: its rows, its cache, and how many tokens it was asked for so far."""

    carry: loop.Carry
    cache: loop.Cache
    drawn: int


@dataclass(frozen=True)
class Decoding:
    """A checked request whose prompts are read; `begin` and `advance` draw its continuations.

    Attributes:
        model: the decoder.
        params: the complete variables tree.
        prompts: the checked rows.
        budget: N.
        keys: `[B]` row keys.
        chain: the resolved transforms.
        criteria: the resolved criteria.
        sampling: the policy, for its pad and end ids.
        cache: after the prompts.
        logits: `[B, V]` after the prompts.
    """

    model: Any
    params: Mapping[str, Any]
    prompts: Prompts
    budget: int
    keys: jax.Array
    chain: loop.Chain
    criteria: loop.Chain
    sampling: Sampling
    cache: loop.Cache
    logits: jax.Array

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
        logits: Sequence[LogitsTransform] | None = None,
        stopping: Sequence[Stopping] | None = None,
        strategy: Strategy | None = None,
    ) -> Decoding:
        """Check a request as `generate` takes it, and read its prompts into the cache."""
        if type(strategy) not in (type(None), Sample):
            raise ValueError(f"strategy={strategy!r} is not supported; leave it out or pass Sample()")
        if not is_count(max_new_tokens):
            raise ValueError(f"max_new_tokens={max_new_tokens} must be a positive integer")
        check_model(model, sampling)
        prompts = read_prompts(inputs, model, max_new_tokens)
        keys = row_keys(key, seed, prompts.rows)
        chain = as_data(sampling.transforms() if logits is None else logits)
        criteria = as_data((*sampling.criteria(), *(stopping or ())))
        width = prompts.packed.shape[1]
        capacity = min(width + bucket(max_new_tokens, model.max_seq_len), model.max_seq_len)
        cache, scores = loop.prefill(
            model, params, prompts.packed, prompts.lengths.astype(np.int32), capacity=capacity
        )
        return cls(
            model=model,
            params=params,
            prompts=prompts,
            budget=max_new_tokens,
            keys=keys,
            chain=chain,
            criteria=criteria,
            sampling=sampling,
            cache=cache,
            logits=scores,
        )

    def begin(self, continuation: int = 0) -> Progress:
        """Draw the first token of one continuation of every prompt."""
        keys = self.keys
        if continuation:
            keys = jax.vmap(jax.random.fold_in, (0, None))(keys, continuation)
        carry = loop.begin(
            self.prompts.packed,
            self.prompts.lengths.astype(np.int32),
            keys,
            self.logits,
            self.chain,
            self.criteria,
            np.int32(self.sampling.pad_id),
            np.full(self.prompts.rows, self.budget, np.int32),
            slots=bucket(self.budget, self.model.max_seq_len),
        )
        return Progress(carry, self.cache, 1)

    def advance(self, progress: Progress, count: int | None = None) -> Progress:
        """Draw `count` more tokens, or all that are left, of the rows that have not ended."""
        until = self.budget if count is None else min(progress.drawn + count, self.budget)
        if until == progress.drawn:
            return progress
        carry, cache = loop.advance(
            self.model,
            self.params,
            progress.carry,
            progress.cache,
            self.chain,
            self.criteria,
            np.int32(until),
        )
        return replace(progress, carry=carry, cache=cache, drawn=until)

    def responses(self, progress: Progress) -> list[list[int]]:
        """The ids drawn so far for each row, without an end token, on the host.

        Raises:
            FloatingPointError: a row whose distribution was undefined.
        """
        refuse_undefined(progress.carry)
        state = progress.carry.state
        return response_ids(state.tokens[:, state.prompt_width :], state.step, self.sampling.eos_ids)

    def finished(self, progress: Progress) -> bool:
        """Whether every row has ended or reached the budget."""
        return progress.drawn >= self.budget or not np.asarray(progress.carry.state.active).any()

    def record(self, carries: Sequence[loop.Carry]) -> Generation:
        """The record of these continuations.

        Raises:
            FloatingPointError: a row whose distribution was undefined.
        """
        for carry in carries:
            refuse_undefined(carry)
        n, width = len(carries), self.prompts.width
        start = self.prompts.packed.shape[1]

        def rows(leaves: Sequence[jax.Array]) -> jax.Array:
            return jnp.stack(leaves, axis=1).reshape(-1, *leaves[0].shape[1:])

        given = jnp.repeat(jnp.asarray(self.prompts.given, jnp.int32), n, axis=0)
        drawn = rows([carry.state.tokens[:, start : start + self.budget] for carry in carries])
        return Generation(
            tokens=jnp.concatenate([given, drawn], axis=1),
            lengths=rows([carry.state.step for carry in carries]),
            terminated=rows([carry.terminated for carry in carries]),
            behavior_log_probs=rows([carry.behavior_log_probs[:, : self.budget] for carry in carries]),
            raw_log_probs=rows([carry.raw_log_probs[:, : self.budget] for carry in carries]),
            rows=self.prompts.rows * n,
            prompt_width=width,
            eos_ids=self.sampling.eos_ids,
        )


def is_count(value: object) -> bool:
    """Whether `value` is an integer of at least 1, of Python or of NumPy."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        return False
    return int(value) >= 1


def row_keys(key: jax.Array | None, seed: int | None, rows: int) -> jax.Array:
    """The key of each row `[B]`."""
    if (key is None) == (seed is None):
        raise ValueError("give exactly one of key and seed; seed=n is key=jax.random.key(n)")
    if key is None:
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise TypeError(f"seed={seed!r} must be an integer")
        if not -(2**63) <= seed < 2**63:
            raise ValueError(f"seed={seed} must fit 64 bits: from {-(2**63)} to {2**63 - 1}")
        key = jax.random.key(seed)
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        raise TypeError(f"key has dtype {key.dtype}; make a typed key with jax.random.key")
    if key.ndim == 0:
        return jax.vmap(jax.random.fold_in, (None, 0))(key, np.arange(rows, dtype=np.uint32))
    if key.shape != (rows,):
        raise ValueError(f"key has shape {key.shape}; give one key, or one for each of the {rows} rows")
    return key


def as_data(parts: Sequence[Any]) -> loop.Chain:
    """`parts` as one pytree; a plain function becomes a leafless node of it.

    Raises:
        TypeError: a part that cannot be called.
    """
    for part in parts:
        if not callable(part):
            raise TypeError(
                f"{part!r} is no transform or criterion: it must be callable as part(state, array)"
            )
    return tuple(jax.tree_util.Partial(part) if jax.tree_util.all_leaves([part]) else part for part in parts)


def refuse_undefined(carry: loop.Carry) -> None:
    """Raise where a row had no distribution to draw from."""
    fault = np.asarray(carry.fault)
    if not fault.any():
        return
    row = int(np.flatnonzero(fault)[0])
    step = int(carry.state.step[row])
    whose, fix = {
        loop.MODEL_UNDEFINED: ("the model's own logits are", "look at the weights"),
        loop.CHAIN_UNDEFINED: ("the chain of transforms left its scores", "look at the transforms"),
    }[int(fault[row])]
    raise FloatingPointError(
        f"row {row} has no distribution at generated token {step}: "
        f"{whose} NaN, +inf or without a finite entry; {fix}"
    )


def check_model(model: Any, sampling: Sampling) -> None:
    """Refuse a model that does not draw left to right, or an end token it does not have.

    Raises:
        ValueError: naming the field.
    """
    if not getattr(model, "causal", True):
        raise ValueError(
            "the model declares causal=False; generate draws left to right and needs a causal one"
        )
    for each in sampling.eos_ids:
        if each >= model.vocab_size:
            raise ValueError(
                f"eos_id={each} is outside the model's ids, 0 to {model.vocab_size - 1}; "
                "no row could end with it"
            )
