"""What a response is worth: the reward's contract, and a pass of one over texts. It imports no JAX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from dew.failure import StatedFailure

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float


class UnusableReward(StatedFailure, ValueError):
    """What a reward gave that no policy can learn from."""


class Reward(Protocol):
    """Judges responses, on the host."""

    def __call__(self, prompts: Sequence[str], responses: Sequence[str], /) -> Sequence[float | None]:
        """One number for each response; None or NaN abstains, and that row then teaches nothing.

        Args:
            prompts: the text each response continues.
            responses: without the token that ended them.
        """
        ...


@runtime_checkable
class CheckedPrompts(Protocol):
    """A dataset specification whose prompts have answers that a rule can check."""

    def prompts(self) -> list[str]:
        """Every prompt."""
        ...

    def check(self, prompt: str, response: str) -> float | None:
        """What `response` is worth; None abstains."""
        ...

    def form(self, count: int, *, seed: int) -> list[tuple[str, str]]:
        """`count` prompts with answers of the right form that say nothing about the right answer."""
        ...


class Checked:
    """A reward that asks `prompts.check` about one response after another.

    Args:
        prompts: knows the answers.
    """

    def __init__(self, prompts: CheckedPrompts) -> None:
        self._check = prompts.check

    def __call__(self, prompts: Sequence[str], responses: Sequence[str], /) -> list[float | None]:
        return [self._check(prompt, response) for prompt, response in zip(prompts, responses, strict=True)]


def scored(reward: Reward, prompts: Sequence[str], responses: Sequence[str]) -> Float[np.ndarray, " R"]:
    """The rewards [R] as float32, NaN where one abstains.

    Raises:
        UnusableReward: another number of values than of responses, or an infinite one.
    """
    import numpy as np

    values = list(reward(prompts, responses))
    if len(values) != len(responses):
        raise UnusableReward(
            f"the reward gave {len(values)} values for {len(responses)} responses; give one for each"
        )
    array = np.asarray([np.nan if value is None else float(value) for value in values], np.float32)
    if np.isinf(array).any():
        row = int(np.flatnonzero(np.isinf(array))[0])
        raise UnusableReward(
            f"the reward of response {row} ({responses[row][:40]!r}) is {array[row]}; give a finite number, "
            "or None to abstain"
        )
    return array
