"""What `dew generate` asks of a language model. Importing it imports no JAX."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from dew.sampling.text.config import Sampling

if TYPE_CHECKING:
    from dew.config import RunConfig
    from dew.inference.text.task import TextGeneration


@dataclass(frozen=True)
class TextOptions:
    """Continue a prompt with a trained language model.

    Attributes:
        prompt: Text to continue; an empty one continues a newline.
        sampling: How tokens are drawn; the defaults are the run's own.
        max_new_tokens: Tokens to draw at most; unset takes the length of the run's previews.
        n: Continuations; the first is the same whatever their number.

    Raises:
        ValueError: a number of tokens or continuations below 1.
    """

    prompt: str
    sampling: Sampling = Sampling()
    max_new_tokens: int | None = None
    n: int = 1

    positional: ClassVar[tuple[str, ...]] = ("prompt",)

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "n"):
            value: int | None = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1")

    @classmethod
    def of_run(cls, config: RunConfig) -> Self:
        """The options as a run's own configuration has them; the prompt is the user's to give."""
        sampling = getattr(config, "sampling", None)
        return cls("", sampling if isinstance(sampling, Sampling) else Sampling())

    def respond(self, task: TextGeneration, *, seed: int) -> Iterator[str]:
        """One prompt with its continuation as it is drawn, or several continuations with their numbers."""
        if self.n == 1:
            pieces = task.stream(self.prompt, self.max_new_tokens, seed=seed, sampling=self.sampling)
            yield self.prompt
            yield from pieces
            yield "\n"
            return
        drawn = task(self.prompt, self.max_new_tokens, n=self.n, seed=seed, sampling=self.sampling)
        for number, text in enumerate(drawn.text, start=1):
            yield f"--- {number} of {self.n}\n{self.prompt}{text}\n"
