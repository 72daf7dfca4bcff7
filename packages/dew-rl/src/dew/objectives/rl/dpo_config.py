"""The configuration of a preference run. Importing it imports no JAX."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from dew.config import DataSpec, ModelConfig, OptimConfig, RunConfig, TrainerConfig
from dew.data.preferences.config import SumPairs
from dew.objectives.lm.model_sizes import with_sizes
from dew.objectives.rl.warm_start import WarmStart
from dew.rl.names import PreferenceName
from dew.sampling.text.config import Sampling
from dew.training.optim.config import Cosine

if TYPE_CHECKING:
    from dew.data.text import Tokenizer
    from dew.objectives.base import Variables
    from dew.objectives.rl.dpo import DPOObjective

NEWLINE = 10
"""Ends a response of the byte-level preset."""


@runtime_checkable
class Comparisons(Protocol):
    """A dataset specification of pairs."""

    @property
    def seq_len(self) -> int:
        """Predictions a row."""
        ...

    def form(self, count: int, *, seed: int) -> list[tuple[str, str]]:
        """`count` prompts with responses, the end included, that have the form alone."""
        ...


@dataclass(frozen=True)
class DPORunConfig(RunConfig):
    """A run that learns from preferences.

    Attributes:
        objective: `dpo`.
        tokenizer: `byte`, or a tokenizer file or folder.
        loss: the law over a pair's log ratios: `sigmoid` is DPO's own, `hinge` stops at a margin, `ipo`
            aims at one.
        beta: strength of the pull towards the reference.
        warm_start: supervised steps on responses of the right form and no content, before the reference is
            frozen.
        sample_prompts: what validation samples continue, all of one length; none shows no text.
        sample_tokens: tokens drawn for a validation sample at most.
        sampling: how they are drawn; also the policy that generation from this run starts with.

    Raises:
        ValueError: another objective's name, or a number out of its range.
    """

    model: ModelConfig = field(default_factory=lambda: ModelConfig("causal_transformer"))
    data: DataSpec = field(default_factory=SumPairs)
    objective: str | None = "dpo"
    tokenizer: str = "byte"
    loss: PreferenceName = "sigmoid"
    beta: float = 0.1
    warm_start: WarmStart = field(default_factory=WarmStart)
    sample_prompts: tuple[str, ...] = ()
    sample_tokens: int = 16
    sampling: Sampling = field(default_factory=lambda: Sampling(eos_id=NEWLINE))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.objective != "dpo":
            raise ValueError(f"objective={self.objective!r} must be 'dpo' in a preference run")
        if not 0 < self.beta < math.inf:
            raise ValueError(f"beta={self.beta} must be positive and finite")
        if self.sample_tokens < 1:
            raise ValueError(
                f"sample_tokens={self.sample_tokens} must be at least 1; empty sample_prompts show no text"
            )

    @classmethod
    def starting_point(cls) -> Self:
        """A byte-level decoder that learns to prefer right sums in minutes on a laptop's processor."""
        return cls(
            model=ModelConfig(
                "causal_transformer",
                config={"hidden_size": 64, "num_layers": 2, "num_heads": 4, "max_seq_len": 32},
                dtype="float32",
            ),
            data=SumPairs(),
            optim=OptimConfig(
                optimizer="muon",
                optimizer_opts={"b2": 0.98},
                learning_rate=3e-3,
                schedule=Cosine(warmup_updates=100, end_factor=0.02),
                weight_decay=0.01,
                clip_grads=1.0,
            ),
            trainer=TrainerConfig(
                batch_size=64, steps=3000, log_every=50, eval_every=500, checkpoint_every=500
            ),
            sample_prompts=("12+34=", "58+27=", "40+99=", "86+75="),
            sample_tokens=4,
            sampling=Sampling(temperature=0, eos_id=NEWLINE),
        )

    @property
    def preview_tokens(self) -> int | None:
        """How long generation from the run is by default."""
        return self.sample_tokens

    def build(self, *, variables: Variables | None = None) -> DPOObjective:
        """The objective this configuration describes.

        Args:
            variables: the complete tree that policy and reference start from.

        Raises:
            ValueError: sizes that do not fit the tokenizer, the data or the preview.
            FileNotFoundError: the tokenizer.
        """
        from dew.data.text import load_tokenizer
        from dew.objectives.rl.dpo import DPOObjective

        tokenizer = load_tokenizer(self.tokenizer)
        model = self.resolved(tokenizer).model.build()
        return DPOObjective(
            model,
            self.comparisons().seq_len,
            loss=self.loss,
            beta=self.beta,
            samples=self._samples(tokenizer, model.max_seq_len),
            pretrained=variables,
        )

    def resolved(self, tokenizer: Tokenizer) -> Self:
        """This configuration with the vocabulary and the row length written into the model's fields.

        Raises:
            ValueError: the model's own values do not fit the tokenizer or the data.
        """
        seq_len = self.comparisons().seq_len
        self.trainer.mesh.check_positions("data.seq_len", seq_len)
        model = with_sizes(
            self.model,
            tokenizer,
            self.tokenizer,
            needed=seq_len,
            needs=f"data.seq_len={seq_len}",
            unset=seq_len + self.sample_tokens,
        )
        return dataclasses.replace(self, model=model)

    def comparisons(self) -> Comparisons:
        """`data` as pairs.

        Raises:
            ValueError: it holds something else.
        """
        if not isinstance(self.data, Comparisons):
            raise ValueError(
                f"data={type(self.data).__name__} holds no pairs; a preference run trains on data:sum-pairs "
                "or a dataset with seq_len and form of its own"
            )
        return self.data

    def _samples(self, tokenizer: Tokenizer, longest: int) -> Any:
        from dew.objectives.lm.samples import Samples

        if not self.sample_prompts:
            return None
        prompts = [tokenizer.encode(prompt) for prompt in self.sample_prompts]
        lengths = sorted({len(prompt) for prompt in prompts})
        if lengths[0] == 0 or len(lengths) > 1:
            raise ValueError(
                f"sample_prompts={self.sample_prompts} make {', '.join(map(str, lengths))} tokens; samples "
                "are drawn together: give prompts of one length, at least 1"
            )
        if len(prompts[0]) + self.sample_tokens > longest:
            raise ValueError(
                f"sample_prompts have {len(prompts[0])} tokens and sample_tokens={self.sample_tokens}, over "
                f"the model's max_seq_len={longest}; use at most "
                f"--sample-tokens {max(0, longest - len(prompts[0]))}"
            )
        return Samples(prompts, self.sample_tokens, self.sampling, tokenizer.decode)
