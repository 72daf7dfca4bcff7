"""The server: a queue of requests in front of resident rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from dew.inference import TextGeneration
from dew.inference.server.admitting import Admission, admitted, oldest_first
from dew.inference.server.rows import Entry, advance, empty_cache, enter, released, vacant
from dew.inference.server.servable import check_sizes, check_task, parts
from dew.inference.server.ticket import Ticket
from dew.inference.text.rows import Request, read_request
from dew.inference.text.task import stops_of
from dew.sampling.text import Generation, loop
from dew.sampling.text.checks import is_count, row_keys
from dew.sampling.text.faults import refuse_undefined
from dew.sampling.text.operations import Cache
from dew.sampling.text.prompts import bucket, check_prompts

ENDLESS = np.int32(np.iinfo(np.int32).max)


class Server:
    """Serves a text task by continuous batching: a request enters a row as soon as one is free.

    The server holds `slots` rows with `capacity` cache slots each. A request waits in a queue, enters a free
    row (its prompt is read in a bucketed width, so that prompts of many lengths share few executables), and
    draws together with whatever stands in the other rows, one compiled step for all of them. Every request
    runs the task's own policy and draws with the key it was submitted with: its tokens are those of
    `task(request, ..., key=key)` up to rounding, and bit for bit the same whatever arrives before, beside or
    after it at these `slots` and `capacity`.

    A server is used from one thread. Build it with `from_task`.
    """

    def __init__(self, task: TextGeneration, *, slots: int, capacity: int, admission: Admission) -> None:
        self.task = task
        self.slots = slots
        self.capacity = capacity
        self.admission = admission
        self._waiting: list[Ticket] = []
        self._running: dict[int, Ticket] = {}
        self._transform, self._stopping = parts(task)
        self._rows = vacant(slots, capacity, task.sampling.pad_id)
        self._cache: Cache = empty_cache(task.model, slots, capacity)

    @classmethod
    def from_task(
        cls, task: TextGeneration, *, slots: int, capacity: int, admission: Admission | None = None
    ) -> Self:
        """A server of `task`, with its cache allocated.

        Args:
            task: a `TextGeneration`; its weights are those of the task at this moment.
            slots: rows that draw at once.
            capacity: tokens of a row, prompt and response together; at most the model's `max_seq_len`.
            admission: which waiting requests enter when rows are free; None takes the oldest.

        Raises:
            TypeError: another kind of task.
            ValueError: sizes out of range, or a setting of the task that cannot be served.
        """
        check_task(task)
        check_sizes(slots, capacity, longest=int(task.model.max_seq_len))
        return cls(task, slots=slots, capacity=capacity, admission=admission or oldest_first)

    def submit(
        self,
        request: Request,
        max_new_tokens: int | None = None,
        *,
        key: jax.Array | None = None,
        seed: int | None = None,
    ) -> Ticket:
        """Queue one prompt; nothing runs before `step`, `run` or the ticket's `result`.

        Args:
            request: one prompt in any form the task takes.
            max_new_tokens: the budget; None takes the task's.
            key: as in `generate`; the row's key is the one that a request of one row draws with.
            seed: as in `generate`.

        Raises:
            ValueError: several prompts, or one that with its budget is longer than `capacity`.
            TypeError: ids that are not integers.
        """
        tickets = self._tickets(request, max_new_tokens, key, seed)
        if len(tickets) != 1:
            raise ValueError(
                f"submit takes one prompt, and the request holds {len(tickets)}; submit each, or call the "
                "server with all of them"
            )
        self._waiting.append(tickets[0])
        return tickets[0]

    def step(self) -> tuple[Ticket, ...]:
        """One iteration: requests enter free rows, and every running row draws a token.

        Returns:
            The tickets that settled in it, none where nothing waits or runs.
        """
        return self._iterate(np.int32(1), until_one_ends=False)

    def run(self) -> tuple[Ticket, ...]:
        """Step until the queue and the rows are empty, and return the tickets that settled.

        A request that fails keeps its error for its own `result`.
        """
        settled: list[Ticket] = []
        while self._waiting or self._running:
            settled += self._iterate(ENDLESS, until_one_ends=bool(self._waiting))
        return tuple(settled)

    def __call__(
        self,
        request: Request,
        max_new_tokens: int | None = None,
        *,
        key: jax.Array | None = None,
        seed: int | None = None,
    ) -> Generation:
        """Submit every prompt of `request`, run, and return one record as `task(request, ...)` would.

        Raises:
            ValueError: as `submit`.
            FloatingPointError: a prompt's distribution was undefined; the others have run.
        """
        tickets = self._tickets(request, max_new_tokens, key, seed)
        self._waiting += tickets
        self.run()
        return stacked([ticket.result() for ticket in tickets])

    def bind(self, variables: Mapping[str, Any]) -> Self:
        """A server over other weights, with an empty cache and an empty queue; executables are kept.

        What waits or runs here stays here, with the weights it was submitted to.
        """
        return type(self)(
            self.task.bind(variables), slots=self.slots, capacity=self.capacity, admission=self.admission
        )

    def cancel(self, ticket: Ticket) -> bool:
        """Take a request of this server out of the queue or its row; False where it has settled."""
        if ticket.settled:
            return False
        if ticket.stage == "waiting":
            self._waiting.remove(ticket)
        else:
            row = next(row for row, each in self._running.items() if each is ticket)
            del self._running[row]
            self._rows = released(self._rows, row)
        ticket.stage = "cancelled"
        return True

    def _tickets(
        self, request: Request, max_new_tokens: int | None, key: jax.Array | None, seed: int | None
    ) -> list[Ticket]:
        """A ticket for every prompt of `request`, checked before any of them is queued."""
        inputs = read_request(request, self.task.processor, self.task.sampling.pad_id)
        budget = self.task.budget(max_new_tokens, inputs.tokens.shape[-1])
        if not is_count(budget):
            raise ValueError(f"max_new_tokens={budget!r} must be a positive integer")
        prompts = check_prompts(inputs, self.task.model, budget)
        self._check_capacity(prompts.lengths, budget)
        keys = row_keys(key, seed, prompts.rows)
        resident = self._rows.state.keys.dtype
        if keys.dtype != resident:
            raise TypeError(f"key has dtype {keys.dtype}, and this server's rows draw with {resident} keys")
        given, packed = np.asarray(prompts.given, np.int32), np.asarray(prompts.packed)
        return [
            Ticket(self, given[row].copy(), packed[row, :length].copy(), budget, keys[row : row + 1])
            for row, length in enumerate(prompts.lengths)
        ]

    def _check_capacity(self, lengths: np.ndarray, budget: int) -> None:
        longest = int(lengths.max())
        if longest + budget > self.capacity:
            raise ValueError(
                f"a prompt of {longest} tokens and max_new_tokens={budget} more make {longest + budget}; a "
                f"row of this server holds capacity={self.capacity}: shorten them or serve with more"
            )

    def _iterate(self, steps: np.int32, *, until_one_ends: bool) -> tuple[Ticket, ...]:
        self._admit()
        if not self._running:
            return ()
        awaited = np.zeros(self.slots, bool)
        if until_one_ends and self._waiting:
            awaited[list(self._running)] = True
        self._rows, self._cache = advance(
            self.task.model,
            self.task.variables,
            self._rows,
            self._cache,
            self._transform,
            self._stopping,
            steps,
            awaited,
        )
        return self._collect()

    def _admit(self) -> None:
        free = [row for row in range(self.slots) if row not in self._running]
        if not free or not self._waiting:
            return
        chosen = admitted(self.admission, self._waiting, len(free), idle=not self._running)
        for row, ticket in zip(free, chosen, strict=False):
            self._enter(row, ticket)
            self._waiting.remove(ticket)
            self._running[row] = ticket
            ticket.stage = "running"

    def _enter(self, row: int, ticket: Ticket) -> None:
        length = len(ticket.prompt)
        tokens = np.zeros((1, self.capacity), np.int32)
        tokens[0, :length] = ticket.prompt
        entry = Entry(
            tokens=jnp.asarray(tokens),
            length=jnp.asarray([length], jnp.int32),
            key=ticket.key,
            budget=jnp.asarray([ticket.max_new_tokens], jnp.int32),
            row=jnp.asarray(row, jnp.int32),
        )
        self._rows, self._cache = enter(
            self.task.model,
            self.task.variables,
            self._rows,
            self._cache,
            entry,
            self._transform,
            self._stopping,
            np.int32(self.task.sampling.pad_id),
            width=bucket(length, self.capacity),
        )

    def _collect(self) -> tuple[Ticket, ...]:
        """Settle the tickets whose rows have ended, and free the rows."""
        carry = self._rows
        active = np.asarray(carry.state.active)
        ended = {row: ticket for row, ticket in self._running.items() if not active[row]}
        if not ended:
            return ()
        carry = replace(carry, state=replace(carry.state, keys=None))
        host = jax.device_get(carry)
        for row, ticket in ended.items():
            del self._running[row]
            self._settle(ticket, jax.tree.map(lambda leaf, row=row: leaf[row : row + 1].copy(), host))
        return tuple(ended.values())

    def _settle(self, ticket: Ticket, carry: loop.Carry) -> None:
        """Give `ticket` the record of its row; `carry` is that row alone."""
        try:
            refuse_undefined(carry.fault, carry.state.step)
        except FloatingPointError as error:
            ticket.stage, ticket.error = "failed", error
            return
        budget, state = ticket.max_new_tokens, carry.state
        drawn = state.tokens[:, self.capacity : self.capacity + budget]
        ticket.stage = "done"
        ticket.generation = Generation(
            tokens=np.concatenate([ticket.given[None], drawn], axis=1),
            lengths=np.asarray(state.step),
            terminated=np.asarray(carry.terminated),
            behavior_log_probs=np.asarray(carry.behavior_log_probs[:, :budget]),
            raw_log_probs=np.asarray(carry.raw_log_probs[:, :budget]),
            rows=1,
            prompt_width=len(ticket.given),
            eos_ids=self.task.sampling.eos_ids,
            processor=self.task.processor,
            stops=stops_of(self.task.stopping),
        )


def stacked(records: Sequence[Generation]) -> Generation:
    """One record of rows that share their prompt width and budget."""
    whole: Generation = jax.tree.map(lambda *leaves: np.concatenate(leaves), *records)
    return replace(whole, rows=len(records))
