"""`dew generate`: continue a prompt with a trained run. The words are read before anything numerical
loads.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any

import tyro

from dew.cli.errors import SUCCESS, UserError
from dew.inference.tasks.opening import pipeline, recorded_objective
from dew.registry import objectives, tasks


@dataclass(frozen=True)
class Request[Policy]:
    """Continue a prompt with a trained run.

    Attributes:
        run: Folder of the run.
        prompt: Text to continue; an empty one continues a newline.
        policy: How tokens are drawn; the defaults are the run's own.
        max_new_tokens: Tokens to draw at most; unset takes the length of the run's previews.
        n: Continuations; the first is the same whatever their number.
        seed: Of the draws.
        step: Checkpoint; unset takes the newest.
        ema: Use the averaged weights where the run keeps an average.
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    prompt: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PROMPT")]
    policy: Annotated[Policy, tyro.conf.arg(name="")]
    max_new_tokens: int | None = None
    n: int = 1
    seed: int = 0
    step: int | None = None
    ema: bool = True


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit status."""
    request = parse(list(argv))
    recorded_objective(request.run)
    keep_compiled_programs()
    task = pipeline(request.run, step=request.step, ema=request.ema)
    for piece in responses(task, request):
        sys.stdout.write(piece)
        sys.stdout.flush()
    return SUCCESS


def parse(words: list[str]) -> Request[Any]:
    """The request that `words` make, with the policy options of the run's family."""
    policy_class, policy = policy_of(run_among(words))
    default: Request[Any] = Request(run=tyro.MISSING, prompt=tyro.MISSING, policy=policy)
    request = tyro.cli(Request[policy_class], args=words, default=default, prog="dew generate")
    for name in ("max_new_tokens", "n"):
        value: int | None = getattr(request, name)
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} {value} must be at least 1")
    return request


def run_among(words: Iterable[str]) -> str | None:
    """The first word that is a run's folder."""
    return next((word for word in words if os.path.isfile(os.path.join(word, "run.json"))), None)


def policy_of(run: str | None) -> tuple[type[Any], Any]:
    """The class of a family's sampling policy, and the one `run` recorded or the class's default."""
    names = tasks.names()
    if not names:
        raise UserError("no installed package generates anything: pip install dew-lm")
    name = names[0] if run is None else recorded_objective(run)
    policy_class = tasks.config(name)
    if run is not None:
        config = objectives.config(name).load(run)
        for field in fields(config):
            value = getattr(config, field.name)
            if isinstance(value, policy_class):
                return policy_class, value
    return policy_class, policy_class()


def responses(task: Any, request: Request[Any]) -> Iterator[str]:
    """What is printed: one prompt with its continuation as it is drawn, or several with their numbers."""
    controls = {"seed": request.seed, "sampling": request.policy}
    if request.n == 1:
        pieces = task.stream(request.prompt, request.max_new_tokens, **controls)
        yield printable(request.prompt)
        yield from map(printable, pieces)
        yield "\n"
        return
    drawn = task(request.prompt, request.max_new_tokens, n=request.n, **controls)
    for number, text in enumerate(drawn.text, start=1):
        yield f"--- {number} of {request.n}\n{printable(request.prompt + text)}\n"


def printable(text: str) -> str:
    """`text` with what the output's encoding lacks replaced."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, errors="replace").decode(encoding)


def keep_compiled_programs() -> None:
    """Reuse the programs that an earlier call compiled."""
    from dew.config.cache import default_compilation_cache_dir
    from dew.training.runtime import use_compilation_cache

    use_compilation_cache(default_compilation_cache_dir())
