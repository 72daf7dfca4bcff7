"""The configuration of a preference run. Importing it imports no JAX."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self, cast, runtime_checkable

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


@runtime_checkable
class Formed(Protocol):
    """A dataset specification of pairs whose responses have a form that a start can teach."""

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
        pretrained: start from the decoder published in this folder, or in this repository of the Hugging Face
            Hub, `owner/name` or `owner/name@revision`, which the record keeps with its commit. It decides the
            architecture, so that `model.config` may hold `max_seq_len` alone; name its tokenizer in
            `tokenizer`.
        warm_start: supervised steps on responses of the right form and no content, before the reference is
            frozen; for data that has such a form, as `data:sum-pairs`, and weights that are drawn.
        sample_prompts: what validation samples continue, all of one length; none shows no text.
        sample_tokens: tokens drawn for a validation sample at most.
        sampling: how they are drawn; also the policy that generation from this run starts with. Without
            `eos_id` a row ends where the data's form, the published model or the tokenizer ends one.

    Raises:
        ValueError: another objective's name, or a number out of its range.
    """

    model: ModelConfig = field(default_factory=lambda: ModelConfig("causal_transformer"))
    data: DataSpec = field(default_factory=SumPairs)
    objective: str | None = "dpo"
    tokenizer: str = "byte"
    loss: PreferenceName = "sigmoid"
    beta: float = 0.1
    pretrained: str | None = None
    warm_start: WarmStart = field(default_factory=WarmStart)
    sample_prompts: tuple[str, ...] = ()
    sample_tokens: int = 16
    sampling: Sampling = field(default_factory=Sampling)

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
            sampling=Sampling(temperature=0),
        )

    @property
    def preview_tokens(self) -> int | None:
        """How long generation from the run is by default."""
        return self.sample_tokens

    def build(self, *, variables: Variables | None = None) -> DPOObjective:
        """The objective this configuration describes.

        Args:
            variables: the complete tree that policy and reference start from; None reads that of
                `pretrained`, where there is one.

        Raises:
            ValueError: sizes that do not fit the tokenizer, the data or the preview; a published model that
                is not the one described here.
            FileNotFoundError: the tokenizer or the published model.
        """
        from dew.data.text import load_tokenizer
        from dew.objectives.rl.dpo import DPOObjective

        tokenizer = load_tokenizer(self.tokenizer)
        config = self.resolved(tokenizer)
        model = config.model.build()
        if variables is None and self.pretrained is not None:
            from dew.objectives.lm.published import published_variables

            variables = published_variables(self.pretrained, model)
        return DPOObjective(
            model,
            self._seq_len(),
            loss=self.loss,
            beta=self.beta,
            samples=config._samples(tokenizer, model.max_seq_len),
            pretrained=variables,
        )

    def rebuilt(self) -> Self:
        """This configuration without `pretrained`, whose fields a resolved record has."""
        return dataclasses.replace(self, pretrained=None)

    def resolved(self, tokenizer: Tokenizer) -> Self:
        """This configuration with what follows from its tokenizer, its data and the published model.

        Those are the model's fields, the steps of the start and the ids that end a response.

        Raises:
            ValueError: the model's own values do not fit the tokenizer or the data, `pretrained` decides
                them, or a start that has nothing to teach.
            FileNotFoundError: the published model.
        """
        seq_len = self._seq_len()
        self.trainer.mesh.check_positions("data.seq_len", seq_len)
        model, source = self.model, self.pretrained
        if source is not None:
            from dew.objectives.lm.published import with_published

            model, source = with_published(model, source, start=type(self).starting_point().model)
        model = with_sizes(
            model,
            tokenizer,
            self.tokenizer,
            needed=seq_len,
            needs=f"data.seq_len={seq_len}",
            unset=seq_len + self.sample_tokens,
            published=source,
        )
        sampling = self._ended(tokenizer, cast("int", model.config["vocab_size"]))
        return dataclasses.replace(
            self, model=model, pretrained=source, warm_start=self._started(), sampling=sampling
        )

    def form(self) -> list[tuple[str, str]]:
        """The prompts and responses that the start reads.

        Raises:
            ValueError: data without a form.
        """
        if not isinstance(self.data, Formed):
            raise ValueError(
                f"warm_start.steps={self.warm_start.steps} teaches a form of responses, and "
                f"data={type(self.data).__name__} has none (no method form); set --warm-start.steps 0"
            )
        return self.data.form(self.warm_start.rows, seed=self.trainer.seed)

    def _started(self) -> WarmStart:
        formed = isinstance(self.data, Formed)
        start = self.warm_start.settled(teaches=formed and self.pretrained is None)
        if start.steps and not formed:
            self.form()
        if start.steps and self.pretrained is not None:
            raise ValueError(
                f"warm_start.steps={start.steps} teaches drawn weights a form, and pretrained="
                f"{self.pretrained} starts from trained ones; set --warm-start.steps 0"
            )
        return start

    def _ended(self, tokenizer: Tokenizer, vocab_size: int) -> Sampling:
        from dew.objectives.lm.ends import with_ends

        if self.sampling.eos_ids:
            return self.sampling
        if isinstance(self.data, Formed):
            _, response = self.data.form(1, seed=self.trainer.seed)[0]
            return dataclasses.replace(self.sampling, eos_id=tokenizer.encode(response)[-1])
        controls: dict[str, Any] = {}
        if self.pretrained is not None and "vocab_size" not in self.model.config:
            from dew.interop.pretrained import located
            from dew.objectives.lm.kept import source_controls
            from dew.objectives.lm.published import parted

            controls = source_controls(located(*parted(self.pretrained)))
        return with_ends(self.sampling, tokenizer, vocab_size=vocab_size, controls=controls, chats=())

    def _seq_len(self) -> int:
        length: object = getattr(self.data, "seq_len", None)
        if not isinstance(length, int):
            raise ValueError(
                f"data={type(self.data).__name__} has no seq_len; a preference run trains on rows of pairs: "
                "use data:preference-pairs or data:sum-pairs"
            )
        return length

    def _samples(self, tokenizer: Tokenizer, longest: int) -> Any:
        from dew.objectives.lm.samples import Samples

        if not self.sample_prompts:
            return None
        prompts = [tokenizer.encode(prompt) for prompt in self.sample_prompts]
        lengths = sorted({len(prompt) for prompt in prompts})
        if lengths[0] == 0 or len(lengths) > 1:
            raise ValueError(
                f"sample_prompts={self.sample_prompts} make {', '.join(map(str, lengths))} tokens; samples "
                "are drawn together: give prompts of one length, at least 1, or none"
            )
        if len(prompts[0]) + self.sample_tokens > longest:
            raise ValueError(
                f"sample_prompts have {len(prompts[0])} tokens and sample_tokens={self.sample_tokens}, over "
                f"the model's max_seq_len={longest}; use at most "
                f"--sample-tokens {max(0, longest - len(prompts[0]))}"
            )
        return Samples(prompts, self.sample_tokens, self.sampling, tokenizer.decode)
