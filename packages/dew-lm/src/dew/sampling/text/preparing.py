"""A request before anything runs on a device: checked, its parts resolved, agreed on among processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from dew.nn.inputs import ModelInputs
from dew.sampling.decoding.parts import LogitsTransform, Stopping
from dew.sampling.text.checks import check_model, check_parts, is_count, row_keys
from dew.sampling.text.components import as_data, in_sequence
from dew.sampling.text.config import Sampling
from dew.sampling.text.placing import Placement, mesh_of, placement, spans_processes
from dew.sampling.text.prompts import Prompts, bucket, check_prompts
from dew.sampling.text.strategy import Strategy

type Array = jax.Array | np.ndarray


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The arguments of `generate`."""

    model: Any
    params: Mapping[str, Any]
    inputs: ModelInputs | Array
    max_new_tokens: int
    key: jax.Array | None
    seed: int | None
    sampling: Sampling
    n: int
    logits: Sequence[LogitsTransform] | None
    stopping: Sequence[Stopping] | None
    strategy: Strategy


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What a request was resolved to.

    Attributes:
        prompts: the rows of this process.
        keys: `[B]`, theirs.
        chain: the transforms in order, as data.
        criteria: as data.
        placement: where the rows go.
    """

    prompts: Prompts
    keys: jax.Array
    chain: tuple[Any, ...]
    criteria: tuple[Any, ...]
    placement: Placement


def prepared(asked: Asked) -> Checked:
    """Check a request, on every process of the weights' mesh.

    Raises:
        ValueError: naming the argument and its rule.
        TypeError: an argument of another type.
        PoolFailure: another process's request breaks a rule.
    """
    mesh = mesh_of(asked.params)
    if mesh is None or not spans_processes(mesh):
        return _checked(asked)
    from dew.sampling.text.agreeing import agreed

    return agreed(asked, _checked)


def _checked(asked: Asked) -> Checked:
    strategy, sampling = asked.strategy, asked.sampling
    if not is_count(asked.n):
        raise ValueError(f"n={asked.n} must be a positive integer: the continuations of each prompt")
    if not callable(strategy):
        raise ValueError(
            f"strategy={strategy!r} is no decoding strategy; leave it out, or pass Sample(), Beam(...), "
            "Speculative(...) or a callable of your own"
        )
    if not is_count(asked.max_new_tokens):
        raise ValueError(f"max_new_tokens={asked.max_new_tokens} must be a positive integer")
    check_model(asked.model, sampling)
    prompts = check_prompts(asked.inputs, asked.model, asked.max_new_tokens)
    place = placement(asked.params, prompts.rows)
    policy_chain = getattr(strategy, "policy_chain", Sampling.transforms)
    chain = as_data(policy_chain(sampling) if asked.logits is None else in_sequence("logits", asked.logits))
    further = () if asked.stopping is None else in_sequence("stopping", asked.stopping)
    criteria = as_data((*sampling.criteria(), *further))
    check_parts((*chain, *criteria), int(asked.model.vocab_size))
    check = getattr(strategy, "check", None)
    if check is not None:
        check(asked.model, n=asked.n, chain=chain, criteria=criteria)
    return Checked(
        prompts=prompts,
        keys=row_keys(asked.key, asked.seed, prompts.rows, first=place.first),
        chain=chain,
        criteria=criteria,
        placement=place,
    )


def widened(checked: Checked, longest: int, most: int) -> Checked:
    """`checked` with prompts packed as wide as those of the process with the `longest`."""
    return replace(checked, prompts=checked.prompts.widened(bucket(longest, most)))
