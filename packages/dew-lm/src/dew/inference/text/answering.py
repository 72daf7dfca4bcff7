"""Responses of a text task as the command line prints them and as it writes them to a file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from dew.inference.text.asking import Asked
from dew.sampling.decoding import Sample, Stopping, stop_strings
from dew.sampling.text import Generation
from dew.sampling.text.checks import row_keys
from dew.sampling.text.config import Sampling

if TYPE_CHECKING:
    from dew.inference.text.options import TextOptions
    from dew.inference.text.processor import ChatProcessor
    from dew.inference.text.task import TextGeneration


class Prompts(NamedTuple):
    """The prompts of a call, with room for their responses.

    Attributes:
        asked: as the user wrote them.
        rows: their ids.
        budget: of every response, which the widest prompt leaves.
    """

    asked: Sequence[Asked]
    rows: Sequence[list[int]]
    budget: int


def measured(options: TextOptions, task: TextGeneration, asked: Sequence[Asked]) -> Prompts:
    """All prompts, before any response is drawn.

    Raises:
        ValueError: a prompt that leaves no room for its response, named by its place.
    """
    processor = cast("ChatProcessor", task.processor)
    rows = [each.ids(processor) for each in asked]
    budget = task.budget(options.max_new_tokens, max(map(len, rows)))
    most = int(task.model.max_seq_len)
    for number, (each, row) in enumerate(zip(asked, rows, strict=True), start=1):
        if len(row) + budget > most:
            fixes = [f"shorten it to {most - budget} tokens"] if budget < most else []
            fixes += [f"set --max-new-tokens to at most {most - len(row)}"] if len(row) < most else []
            raise ValueError(
                f"{each.place or f'prompt {number}'}: the prompt has {len(row)} tokens, and "
                f"max_new_tokens={budget} more make {len(row) + budget}; the model reads max_seq_len={most}: "
                f"{' or '.join(fixes) or 'shorten both'}"
            )
    return Prompts(asked, rows, budget)


def as_text(options: TextOptions, task: TextGeneration, prompts: Prompts, seed: int) -> Iterator[str]:
    """Each prompt with its response; of several, each behind its number.

    A single response comes as it is drawn. Where a conversation was asked, its answer comes alone.
    """
    count = (len(prompts.asked) - options.skip) * options.n
    if count == 1 and len(prompts.asked) == 1 and isinstance(task.strategy, Sample | None):
        yield from _streamed(options, task, prompts, seed)
        return
    for number, (each, text, _, _) in enumerate(_rows(options, task, prompts, seed), start=1):
        heading = "" if count == 1 else f"--- {number} of {count}\n"
        yield f"{heading}{each.text or ''}{text}\n"


def as_lines(options: TextOptions, task: TextGeneration, prompts: Prompts, seed: int) -> Iterator[str]:
    """One JSON object a line for each response.

    It holds `request` as the user wrote it, `continuation` (0 to n - 1), `text`, `tokens` with the one that
    ended the row, `terminated`, `behavior_log_probs` and `raw_log_probs` of these tokens.
    """
    for index, (each, text, drawn, row) in enumerate(_rows(options, task, prompts, seed)):
        length = int(drawn.lengths[row])
        start = drawn.prompt_width
        record = {
            "request": each.request,
            "continuation": index % options.n,
            "text": text,
            "tokens": np.asarray(drawn.tokens)[row, start : start + length].tolist(),
            "terminated": bool(drawn.terminated[row]),
            "behavior_log_probs": np.asarray(drawn.behavior_log_probs)[row, :length].tolist(),
            "raw_log_probs": np.asarray(drawn.raw_log_probs)[row, :length].tolist(),
        }
        yield json.dumps(record, ensure_ascii=False) + "\n"


def _streamed(options: TextOptions, task: TextGeneration, prompts: Prompts, seed: int) -> Iterator[str]:
    pieces = task.stream(
        prompts.rows,
        prompts.budget,
        seed=seed,
        sampling=_policy(options, task),
        stopping=_criteria(options, task),
    )
    yield prompts.asked[0].text or ""
    yield from pieces
    yield "\n"


def _rows(
    options: TextOptions, task: TextGeneration, prompts: Prompts, seed: int
) -> Iterator[tuple[Asked, str, Generation, int]]:
    """Each response: its prompt, its text, the record it is in, and its row there.

    A prompt's key is that of its place among all prompts, whatever is drawn together.
    """
    criteria = _criteria(options, task)
    for first in range(options.skip, len(prompts.rows), options.batch):
        some = prompts.rows[first : first + options.batch]
        drawn = task(
            some,
            prompts.budget,
            key=row_keys(None, seed, len(some), first=first),
            n=options.n,
            sampling=_policy(options, task),
            stopping=criteria,
        ).host()
        for row, text in enumerate(drawn.text):
            yield prompts.asked[first + row // options.n], text, drawn, row


def _criteria(options: TextOptions, task: TextGeneration) -> tuple[Stopping, ...]:
    """The task's criteria and the strings that the user gave."""
    if not options.stop:
        return tuple(task.stopping)
    added: Any = stop_strings(task.processor, options.stop, vocab_size=int(task.model.vocab_size))
    return (*task.stopping, added)


def _policy(options: TextOptions, task: TextGeneration) -> Sampling | None:
    """The user's policy, or None where it is the task's own, whose chain then stays."""
    return None if options.sampling == task.sampling else options.sampling
