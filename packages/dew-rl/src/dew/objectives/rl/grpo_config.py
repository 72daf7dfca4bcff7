"""The configuration of a run that learns from a reward. Importing it imports no JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from dew.config import DataSpec, ModelConfig, OptimConfig, RunConfig, TrainerConfig
from dew.config.unbuilt import refuse_unbuilt
from dew.data.arithmetic.config import LastDigit
from dew.objectives.lm.model_sizes import with_sizes
from dew.objectives.rl.policy_loss import PolicyLoss
from dew.objectives.rl.rewards import Checked, CheckedPrompts
from dew.objectives.rl.warm_start import WarmStart
from dew.rl.names import AdvantageName, NoSpread
from dew.sampling.text.config import Sampling

if TYPE_CHECKING:
    from dew.data.text import Tokenizer
    from dew.objectives.base import Variables
    from dew.objectives.rl.grpo import GRPOObjective
    from dew.objectives.rl.responder import Responder
    from dew.objectives.rl.rollout import SampledRollout

UNBUILT: Mapping[str, tuple[tuple[object, ...], str]] = {
    "objective": (("grpo",), "use grpo"),
    "inner_steps": ((1,), "use 1: each rollout is trained on once"),
    "optim.optimizer": (("adam", "adamw", "lamb", "muon"), "use muon: this loss reports no attention logits"),
    "trainer.quantization": ((None,), "unset it: responses are drawn from the model in full width"),
}
"""Field -> the values that work, and what to do instead of the others."""


@dataclass(frozen=True)
class GRPORunConfig(RunConfig):
    """A run that draws responses to prompts and learns from what a checker says of them.

    Attributes:
        objective: `grpo`.
        data: prompts that come with a checker.
        tokenizer: `byte`, or a tokenizer file or folder.
        sampling: how responses are drawn; also the policy that generation from this run starts with.
        max_new_tokens: the budget of a response.
        group_size: responses of a prompt, which are set against each other.
        advantages: how: by the group's mean and deviation, its mean, or the mean of the others.
        no_spread: whether a group of equal rewards stays in the loss, where it acts on the divergence alone.
        loss: the policy's loss.
        warm_start: supervised steps before the run, on answers of the right form and random content.
        inner_steps: optimizer steps on one rollout. Not supported yet.

    Raises:
        ValueError: a value that is not supported yet, or a count out of its range.
    """

    model: ModelConfig = field(default_factory=lambda: ModelConfig("causal_transformer"))
    data: DataSpec = field(default_factory=LastDigit)
    optim: OptimConfig = field(default_factory=lambda: OptimConfig(learning_rate=1e-6, clip_grads=1.0))
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    objective: str | None = "grpo"
    tokenizer: str = "byte"
    sampling: Sampling = field(default_factory=Sampling)
    max_new_tokens: int = 64
    group_size: int = 8
    advantages: AdvantageName = "group"
    no_spread: NoSpread = "keep"
    loss: PolicyLoss = field(default_factory=PolicyLoss)
    warm_start: WarmStart = field(default_factory=lambda: WarmStart(steps=0))
    inner_steps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_unbuilt(self, UNBUILT)
        for name in ("max_new_tokens", "group_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.sampling.temperature == 0:
            raise ValueError("sampling.temperature=0 draws one response only; a group needs different ones")

    @classmethod
    def starting_point(cls) -> Self:
        """A byte-level policy of two layers learns the last digit of a sum from a checker alone.

        A group whose answers are all wrong has no advantage to learn from; the divergence alone acts on it
        and holds its answers apart, so that one of them can come to be right.
        """
        return cls(
            model=ModelConfig(
                "causal_transformer",
                config={"hidden_size": 64, "num_layers": 2, "num_heads": 2},
                dtype="float32",
            ),
            optim=OptimConfig(optimizer="adam", learning_rate=1e-3, clip_grads=1.0),
            trainer=TrainerConfig(
                batch_size=50, steps=600, log_every=10, eval_every=50, checkpoint_every=100
            ),
            sampling=Sampling(eos_id=ord("\n")),
            max_new_tokens=3,
            group_size=16,
            loss=PolicyLoss(kl_weight=0.1),
            warm_start=WarmStart(steps=100),
        )

    @property
    def preview_tokens(self) -> int | None:
        """The budget of a response: generation from the run is as long as its rollouts."""
        return self.max_new_tokens

    def build(self, *, variables: Variables | None = None) -> GRPOObjective:
        """The objective this configuration describes.

        Args:
            variables: start from this complete tree; the warm start is not run here.

        Raises:
            ValueError: data without a checker, or sizes that do not fit.
            FileNotFoundError: the tokenizer.
        """
        from dew.data.text import load_tokenizer
        from dew.objectives.rl.grpo import GRPOObjective

        tokenizer = load_tokenizer(self.tokenizer)
        config = self.resolved(tokenizer)
        return GRPOObjective(
            config.model.build(),
            config.row_tokens(tokenizer) - 1,
            responder=config.responder(tokenizer),
            settings=self.loss,
            window_parts=self.trainer.accumulation,
            pretrained=variables,
        )

    def responder(self, tokenizer: Tokenizer) -> Responder:
        """The policy's decoder with this run's sampling and the data's checker."""
        from dew.objectives.rl.responder import Responder

        return Responder(
            model=self.resolved(tokenizer).model.build(),
            tokenizer=tokenizer,
            reward=Checked(self.prompts),
            sampling=self.sampling,
            max_new_tokens=self.max_new_tokens,
        )

    def rollout(self, objective: GRPOObjective) -> SampledRollout:
        """The rollout that feeds `objective`."""
        from functools import partial

        from dew.objectives.rl.rollout import SampledRollout
        from dew.rl.advantages import ESTIMATORS

        estimator = partial(ESTIMATORS[self.advantages], no_spread=self.no_spread)
        return SampledRollout(responder=objective.responder, n=self.group_size, advantages=estimator)

    @property
    def prompts(self) -> CheckedPrompts:
        """The data as prompts with a checker.

        Raises:
            ValueError: it is none.
        """
        if not isinstance(self.data, CheckedPrompts):
            raise ValueError(
                f"data={type(self.data).__name__} has no checker; learning from a reward needs prompts whose "
                "answers can be judged: use data:last-digit, or from Python a GRPOObjective whose Responder "
                "has a reward of your own"
            )
        return self.data

    def row_tokens(self, tokenizer: Tokenizer) -> int:
        """The ids of the longest prompt with a whole response."""
        return max(len(tokenizer.encode(prompt)) for prompt in self.prompts.prompts()) + self.max_new_tokens

    def resolved(self, tokenizer: Tokenizer) -> Self:
        """This configuration with the vocabulary and the row's length written into the model's fields.

        Raises:
            ValueError: the model's own values do not fit the tokenizer or the rows.
        """
        needed = self.row_tokens(tokenizer)
        self.trainer.mesh.check_positions("the longest prompt + max_new_tokens - 1", needed - 1)
        needs = f"the {needed} ids of the longest prompt and max_new_tokens={self.max_new_tokens}"
        model = with_sizes(self.model, tokenizer, self.tokenizer, needed=needed, needs=needs)
        return dataclasses.replace(self, model=model, warm_start=self.warm_start.settled(teaches=True))
