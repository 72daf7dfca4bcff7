"""The text generation task."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self

import jax

from dew.data.chat.beginnings import shared_length
from dew.inference.text.processor import Processor, settled
from dew.inference.text.rows import Request, read_request
from dew.nn.inputs import ModelInputs
from dew.sampling.decoding import LogitsTransform, Sample, Stopping, StopStrings, Strategy
from dew.sampling.text import Decoding, Generation, Sampling, generate
from dew.sampling.text.components import in_sequence
from dew.sampling.text.cutting import cut, pending

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from dew.registry import DtypeName
    from dew.training import Layout, MeshSpec

CHUNK = 16
"""Tokens a stream draws before it hands their text on."""


@dataclass(frozen=True, eq=False)
class TextGeneration:
    """A decoder bound to weights, continuing texts or token rows.

    The task keeps the variables mapping as it was at construction; arrays in it are shared, so do not donate
    or delete them while the task is used. Calls of equal shapes and controls reuse one executable, also after
    `bind`.

    Attributes:
        model: a causal decoder.
        variables: the complete variables tree.
        processor: between text and ids; None serves token rows alone.
        sampling: the policy of calls that name none.
        max_new_tokens: the budget of calls that name none.
        max_length: where no budget is set, prompt and response together.
        n: continuations of each prompt.
        logits: the whole chain of transforms, in place of the policy's; None is the policy's.
        stopping: criteria beside the policy's end token.
        strategy: how tokens are chosen: `Beam`, `Speculative` or one of your own; None draws them.
    """

    model: Any
    variables: Mapping[str, Any]
    processor: Processor | None = None
    sampling: Sampling = Sampling()
    max_new_tokens: int | None = None
    max_length: int | None = None
    n: int = 1
    logits: Sequence[LogitsTransform] | None = None
    stopping: Sequence[Stopping] = ()
    strategy: Strategy | None = None

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "max_length", "n"):
            value: int | None = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        for name in ("logits", "stopping"):
            parts = getattr(self, name)
            object.__setattr__(self, name, None if parts is None else in_sequence(name, parts))
        # Maps are rebuilt and leaves kept: what the caller does to the mapping later does not reach the task.
        object.__setattr__(self, "variables", jax.tree.map(lambda leaf: leaf, dict(self.variables)))

    def __call__(
        self,
        request: Request,
        max_new_tokens: int | None = None,
        *,
        key: jax.Array | None = None,
        seed: int | None = None,
        n: int | None = None,
        sampling: Sampling | None = None,
        images: object | None = None,
        logits: Sequence[LogitsTransform] | None = None,
        stopping: Sequence[Stopping] | None = None,
        strategy: Strategy | None = None,
    ) -> Generation:
        """Continue every prompt of `request`. A value given here replaces the task's own.

        Args:
            request: a text, token ids, the messages of a conversation, several of one kind, an integer array,
                or `ModelInputs`. Messages are rendered in the tokenizer's own chat template, up to where the
                assistant speaks.
            max_new_tokens: the budget.
            key: as in `generate`.
            seed: as in `generate`.
            n: continuations of each prompt.
            sampling: the policy; it also clears a chain bound to the task.
            images: refused; this decoder reads no images.
            logits: the whole chain of transforms.
            stopping: criteria beside the policy's end token.
            strategy: how tokens are chosen.

        Raises:
            ValueError: no budget anywhere, text without a processor, or what `generate` refuses.
            TypeError: rows of several kinds, or ids that are not integers.
        """
        if images is not None:
            raise ValueError("images are not read by this decoder; leave them out")
        inputs, budget, controls = self._resolve(
            request, max_new_tokens, sampling=sampling, logits=logits, stopping=stopping, strategy=strategy
        )
        drawn = generate(
            self.model,
            self.variables,
            inputs,
            budget,
            key=key,
            seed=seed,
            n=self.n if n is None else n,
            **controls,
        )
        return replace(drawn, processor=self.processor, stops=stops_of(controls["stopping"]))

    def stream(
        self,
        request: Request,
        max_new_tokens: int | None = None,
        *,
        key: jax.Array | None = None,
        seed: int | None = None,
        sampling: Sampling | None = None,
        logits: Sequence[LogitsTransform] | None = None,
        stopping: Sequence[Stopping] | None = None,
    ) -> Iterator[str]:
        """The response to one prompt as pieces of text, while it is drawn.

        The pieces joined are the text that one call with these arguments and `n=1` gives: the same compiled
        loop is entered again every 16 tokens with its carried state. A piece ends at a whole character, and
        what may be the start of a stop string waits for the rest.

        Raises:
            ValueError: a request of several rows, a task without a processor, and what a call raises.
        """
        if self.processor is None:
            raise ValueError("the task has no processor to write text with; call it for token ids")
        inputs, budget, controls = self._resolve(
            request, max_new_tokens, sampling=sampling, logits=logits, stopping=stopping, strategy=None
        )
        if inputs.tokens.shape[0] != 1:
            raise ValueError(f"a stream continues one prompt; the request holds {inputs.tokens.shape[0]}")
        if not isinstance(controls["strategy"], Sample | None):
            raise ValueError(
                f"strategy={controls['strategy']!r} of the task has no text before its end to stream; call "
                "the task"
            )
        decoding = Decoding.prepare(
            self.model, self.variables, inputs, budget, key=key, seed=seed, **controls
        )
        return self._pieces(decoding, self.processor, stops_of(controls["stopping"]))

    def bind(self, variables: Mapping[str, Any]) -> TextGeneration:
        """This task over other weights; compiled executables are kept."""
        return replace(self, variables=variables)

    def decode(self, generation: Generation) -> tuple[str, ...]:
        """The response of each row as text.

        Raises:
            ValueError: the task has no processor.
        """
        if self.processor is None:
            raise ValueError("the task has no processor to write text with; read generation.responses()")
        stops = generation.stops or stops_of(self.stopping)
        return replace(generation, processor=self.processor, stops=stops).text

    def budget(self, asked: int | None, width: int) -> int:
        """The tokens to draw at most: those asked for, or the task's own limit.

        Args:
            asked: `max_new_tokens` of the call.
            width: slots of the padded prompt, which `max_length` counts too.

        Raises:
            ValueError: no limit anywhere, or a `max_length` that leaves no token.
        """
        if asked is not None:
            return asked
        if self.max_new_tokens is not None:
            return self.max_new_tokens
        if self.max_length is None:
            raise ValueError("neither the call nor the task sets max_new_tokens; give one")
        if self.max_length <= width:
            raise ValueError(
                f"max_length={self.max_length} leaves no token after a prompt of {width} slots; "
                "give max_new_tokens or a shorter prompt"
            )
        return self.max_length - width

    @classmethod
    def from_run(
        cls,
        directory: str | os.PathLike[str],
        *,
        ema: bool = True,
        step: int | None = None,
        mesh: Mesh | MeshSpec | None = None,
        layout: Layout | None = None,
        dtype: DtypeName | Literal["auto"] | None = None,
        param_dtype: DtypeName | Literal["auto"] | None = None,
    ) -> Self:
        """The model of a training run, with the run's tokenizer, preview policy and preview length.

        Args:
            directory: the run's folder.
            ema: the averaged weights, where the run is configured to keep an average; False takes the live
                ones.
            step: the checkpoint; None takes the newest.
            mesh: the devices; None is the first device alone.
            layout: where parameters stand on `mesh`.
            dtype: computes; None or "auto" keeps the run's.
            param_dtype: stores; None or "auto" keeps the run's.

        Raises:
            FileNotFoundError: no run or no complete checkpoint there.
            ValueError: a run of another kind, or a checkpoint that is not what `run.json` describes.
        """
        from dew.inference.text.run import open_run

        run = open_run(
            directory, ema=ema, step=step, mesh=mesh, layout=layout, dtype=dtype, param_dtype=param_dtype
        )
        return cls(
            run.model,
            run.variables,
            run.processor,
            sampling=run.sampling,
            max_new_tokens=run.max_new_tokens,
        )

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        *,
        ema: bool = True,
        step: int | None = None,
        mesh: Mesh | MeshSpec | None = None,
        layout: Layout | None = None,
        dtype: DtypeName | Literal["auto"] | None = None,
        param_dtype: DtypeName | Literal["auto"] | None = None,
    ) -> Self:
        """`from_run` of a run that a repository of the Hugging Face Hub holds.

        Args:
            repo_id: its name, `owner/name`; a folder of that name comes first.
            ema: as in `from_run`, like all that follow.
            step: the checkpoint.
            mesh: the devices.
            layout: where parameters stand.
            dtype: computes.
            param_dtype: stores.

        Raises:
            FileNotFoundError: no such repository, or no run in it.
            ImportError: huggingface-hub is not installed.
            ValueError: as `from_run`.
        """
        from dew.interop.pretrained import located

        return cls.from_run(
            located(repo_id, None),
            ema=ema,
            step=step,
            mesh=mesh,
            layout=layout,
            dtype=dtype,
            param_dtype=param_dtype,
        )

    def _resolve(
        self, request: Request, max_new_tokens: int | None, **given: Any
    ) -> tuple[ModelInputs, int, dict[str, Any]]:
        """The request's rows, its budget and its controls, each from the call or else from the task."""
        policy = given["sampling"] or self.sampling
        bound = self.logits if given["sampling"] is None else None
        inputs = read_request(request, self.processor, policy.pad_id)
        controls = {
            "sampling": policy,
            "logits": bound if given["logits"] is None else given["logits"],
            "stopping": self.stopping if given["stopping"] is None else given["stopping"],
            "strategy": given["strategy"] or self.strategy,
        }
        return inputs, self.budget(max_new_tokens, inputs.tokens.shape[-1]), controls

    def _pieces(self, decoding: Decoding, processor: Processor, stops: tuple[str, ...]) -> Iterator[str]:
        progress = decoding.advance(decoding.begin(), CHUNK - 1)
        written = ""
        while True:
            text = processor.decode(decoding.responses(progress)[0])
            done = decoding.finished(progress)
            ready = cut(text if done else settled(text), stops)
            ready = ready if done or not stops else ready[: len(ready) - pending(ready, stops)]
            # A decoder may still rewrite what it gave; then nothing is added until it agrees again.
            if done or ready.startswith(written):
                yield from filter(None, [ready[shared_length(written, ready) :]])
                written = ready
            if done:
                return
            progress = decoding.advance(progress, CHUNK)


def stops_of(stopping: Sequence[Stopping]) -> tuple[str, ...]:
    """The strings of the criteria that stop at strings."""
    return tuple(each for part in stopping if isinstance(part, StopStrings) for each in part.strings)
