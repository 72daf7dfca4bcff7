"""The configuration of a language-model run. Importing it imports no JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from dew.config import DataSpec, ModelConfig, OptimConfig, RunConfig, TrainerConfig
from dew.config.unbuilt import refuse_unbuilt
from dew.data.chat.config import ChatMessages
from dew.data.chat.roles import RoleName, role_number
from dew.data.mixture import DataMixture
from dew.data.text.config import TextFiles
from dew.data.tokens.config import TokenWindows
from dew.objectives.lm.model_sizes import with_sizes
from dew.objectives.lm.role_targets import refuse_other_roles
from dew.sampling.text.config import Sampling
from dew.training.optim.config import Cosine

if TYPE_CHECKING:
    from dew.data.text import Tokenizer
    from dew.objectives.base import Variables
    from dew.objectives.lm.objective import LMObjective

UNBUILT: Mapping[str, tuple[tuple[object, ...], str]] = {
    "objective": (("lm",), "use lm"),
    "block_prompt_tokens": ((256,), "leave it at 256: there is no block_diffusion yet"),
    "block_canvas_size": ((None,), "unset it: there is no block_diffusion yet"),
}
"""Field -> the values that work, and what to do instead of the others."""


PREVIEW = Sampling(temperature=0.8, top_k=40)
"""The policy of previews that a run has by itself."""


@dataclass(frozen=True)
class IndexerTraining:
    """Train the lightning indexer of sparse attention (DeepSeek-V3.2, arXiv 2512.02556, section 2.1.1).

    Attributes:
        phase: `warmup` trains the indexer alone beside dense attention; `sparse` trains everything on the
            keys it selects.
        weight: scales the divergence of the indexer's distribution from the attention's.

    Raises:
        ValueError: another phase, or a weight that is not above 0.
    """

    phase: Literal["warmup", "sparse"]
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.phase not in ("warmup", "sparse"):
            raise ValueError(f"indexer phase={self.phase!r} must be 'warmup' or 'sparse'")
        if not self.weight > 0:
            raise ValueError(
                f"indexer weight={self.weight} must be above 0; leave indexer out to train without"
            )


@dataclass(frozen=True)
class LMRunConfig(RunConfig):
    """A language-model run.

    Attributes:
        objective: `lm` predicts the next token.
        tokenizer: `byte`, or a tokenizer file or folder.
        ema_decay: of the moving average of the parameters; None keeps none, 1 a frozen copy.
        sample_prompt: what validation samples continue; empty continues a newline.
        sample_tokens: tokens drawn for a validation sample; 0 shows no text.
        sampling: how they are drawn; also the policy that generation from this run starts with. Without
            `eos_id` a row ends where the published model, the tokenizer or the chat template ends one.
        pretrained: start from the decoder published in this folder, or in this repository of the Hugging Face
            Hub, `owner/name` or `owner/name@revision`, which the record keeps with its commit. It decides the
            architecture, so that `model.config` may hold `max_seq_len` alone; name its tokenizer in
            `tokenizer`.
        balance_rate: how far every update moves a mixture's routers against their load; needs a mixture with
            bias=true, and None leaves them where they are.
        aux_loss_alpha: weight of the balance loss of a mixture's experts; None adds none.
        seq_aux: form the balance loss within each row instead of over the whole step.
        router_z_loss: weight of the routers' squared log partition; 0 adds nothing.
        mtp_weight: weight of the model's prediction depths in the loss (arXiv 2412.19437); needs a model with
            num_nextn_predict_layers, and None leaves them as they are.
        indexer: train the lightning indexer of sparse attention; None trains none. Phase `warmup` trains it
            alone beside dense attention, for a model whose mixer has index_n_heads and no index_topk;
            `sparse` trains the whole model on the keys it selects, for one with index_topk.
        token_accuracy: report how often the best token is the target.
        block_prompt_tokens: of block diffusion. Not supported yet.
        block_canvas_size: of block diffusion. Not supported yet.
        loss_role: of conversations, train only what this one says, as `assistant`; None trains everything.

    Raises:
        ValueError: a value that is not supported yet, a negative number of sample tokens, or a `loss_role`
            for data that does not say whose its tokens are, or says that they are all another's.
    """

    model: ModelConfig = field(default_factory=lambda: ModelConfig("causal_transformer"))
    data: DataSpec = field(default_factory=TokenWindows)
    optim: OptimConfig = field(
        default_factory=lambda: OptimConfig(learning_rate=6e-4, weight_decay=0.1, clip_grads=1.0)
    )
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    objective: str | None = "lm"
    tokenizer: str = "byte"
    ema_decay: float | None = 0.999
    sample_prompt: str = ""
    sample_tokens: int = 128
    sampling: Sampling = PREVIEW
    pretrained: str | None = None
    balance_rate: float | None = None
    aux_loss_alpha: float | None = None
    seq_aux: bool = True
    router_z_loss: float = 0.0
    mtp_weight: float | None = None
    indexer: IndexerTraining | None = None
    token_accuracy: bool = True
    block_prompt_tokens: int = 256
    block_canvas_size: int | None = None
    loss_role: RoleName | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_unbuilt(self, UNBUILT)
        if self.sample_tokens < 0:
            raise ValueError(f"sample_tokens={self.sample_tokens} must be 0 or more; 0 shows no text")
        if self.loss_role is not None:
            refuse_other_roles(self.loss_role, _parts(self.data))

    @classmethod
    def starting_point(cls) -> Self:
        """A byte-level decoder that learns Python's library sources in minutes on a laptop's processor.

        The attention window is the training length, so that no distance is new when it writes further.
        """
        sizes = {"hidden_size": 128, "num_layers": 4, "num_heads": 4, "activation": "relu2"}
        span = {"sliding_window": 128, "max_seq_len": 1024}
        return cls(
            model=ModelConfig("causal_transformer", config={**sizes, **span}, dtype="float32"),
            data=TextFiles(seq_len=128, val_windows=1024),
            optim=OptimConfig(
                optimizer_opts={"b2": 0.98},
                learning_rate=3e-3,
                schedule=Cosine(warmup_updates=100, end_factor=0.02),
                weight_decay=0.1,
                clip_grads=1.0,
            ),
            trainer=TrainerConfig(
                batch_size=8, steps=2000, log_every=20, eval_every=500, checkpoint_every=500
            ),
            ema_decay=None,
            sample_prompt="def ",
            sample_tokens=240,
        )

    @property
    def preview_tokens(self) -> int | None:
        """`sample_tokens`, or None where the run shows no text."""
        return self.sample_tokens or None

    def build(self, *, variables: Variables | None = None) -> LMObjective:
        """The objective this configuration describes.

        Args:
            variables: start from this complete tree; None reads that of `pretrained`, where there is one.

        Raises:
            ValueError: sizes that do not fit the tokenizer, the data, the preview or the mesh; a published
                model that is not the one described here.
            FileNotFoundError: the tokenizer or the published model.
        """
        from dew.data.text import load_tokenizer
        from dew.objectives.lm.objective import LMObjective
        from dew.objectives.lm.published import published_variables

        tokenizer = load_tokenizer(self.tokenizer)
        config = self.resolved(tokenizer)
        model = config.model.build()
        if variables is None and self.pretrained is not None:
            variables = published_variables(self.pretrained, model)
        return LMObjective(
            model,
            self._seq_len(),
            ema_decay=self.ema_decay,
            # Where one token pads and ends, its targets are the ends of documents, which a model must learn.
            pad_id=None if tokenizer.pad_id == tokenizer.eos_id else tokenizer.pad_id,
            samples=config._samples(tokenizer, model.max_seq_len),
            pretrained=variables,
            balance_rate=self.balance_rate,
            aux_loss_alpha=self.aux_loss_alpha,
            seq_aux=self.seq_aux,
            router_z_loss=self.router_z_loss,
            mtp_weight=self.mtp_weight,
            indexer=self.indexer,
            qk_stats=self.optim.optimizer == "muonclip",
            token_accuracy=self.token_accuracy,
            loss_role=role_number(self.loss_role),
        )

    def rebuilt(self) -> Self:
        """This configuration without `pretrained`, whose fields a resolved record has."""
        return dataclasses.replace(self, pretrained=None)

    def save(self, directory: str) -> str:
        """Write `run.json` into `directory`, and beside it what the run keeps of its tokenizer's folder.

        Raises:
            FileNotFoundError: the tokenizer, its template or the published model.
        """
        from dew.objectives.lm.kept import keep_tokenizer, keeps_nothing_more

        path = super().save(directory)
        if keeps_nothing_more(directory, self.tokenizer):
            return path
        templates = {part.template for part in self._chats()}
        # Templates of several kinds leave the tokenizer's own in its place.
        template = templates.pop() if len(templates) == 1 else None
        keep_tokenizer(directory, self.tokenizer, template=template, controls=self._controls() or None)
        return path

    def opened(self, directory: str) -> Self:
        """This configuration with the tokenizer that the run in `directory` keeps."""
        from dew.objectives.lm.kept import kept_tokenizer

        kept = kept_tokenizer(directory)
        return self if kept is None else dataclasses.replace(self, tokenizer=kept)

    def resolved(self, tokenizer: Tokenizer) -> Self:
        """This configuration with the vocabulary and the sequence length written into the model's fields.

        With `pretrained` all fields of the published model are written there. A policy without end ids gets
        those of the published model, the tokenizer and the chat template.

        Raises:
            ValueError: the model's own values do not fit the tokenizer or the data, or `pretrained` decides
                them.
            FileNotFoundError: the published model.
        """
        from dew.objectives.lm.ends import with_ends

        seq_len = self._seq_len()
        model, source, started = self.model, self.pretrained, "vocab_size" in self.model.config
        if source is not None:
            from dew.objectives.lm.published import with_published

            model, source = with_published(model, source, start=type(self).starting_point().model)
        model = with_sizes(
            model,
            tokenizer,
            self.tokenizer,
            needed=seq_len,
            needs=f"data.seq_len={seq_len}",
            published=self.pretrained,
        )
        sampling = with_ends(
            self.sampling,
            tokenizer,
            vocab_size=cast("int", model.config["vocab_size"]),
            controls={} if started else self._controls(),
            chats=self._chats(),
        )
        return dataclasses.replace(self, model=model, pretrained=source, sampling=sampling)

    def _chats(self) -> list[ChatMessages]:
        return [part for part in _parts(self.data) if isinstance(part, ChatMessages)]

    def _controls(self) -> dict[str, Any]:
        """The generation controls of the published model; empty without one."""
        from dew.interop.pretrained import located
        from dew.objectives.lm.kept import source_controls
        from dew.objectives.lm.published import parted

        return {} if self.pretrained is None else source_controls(located(*parted(self.pretrained)))

    def _seq_len(self) -> int:
        if isinstance(self.data, DataMixture):
            self.data.check_parts()
        parts = _parts(self.data)
        lengths: list[object] = [getattr(part, "seq_len", None) for part in parts]
        for part, length in zip(parts, lengths, strict=True):
            if not isinstance(length, int):
                raise ValueError(
                    f"data={type(part).__name__} has no seq_len; a language model trains on rows of tokens: "
                    "use data:text, data:token-windows, data:packed-tokens or data:chat-messages"
                )
        if len(set(lengths)) != 1:
            raise ValueError(f"data.parts have seq_len {lengths}; a mixture needs parts of one seq_len")
        length = cast("int", lengths[0])
        self.trainer.mesh.check_positions("data.seq_len", length)
        return length

    def _samples(self, tokenizer: Tokenizer, longest: int) -> Any:
        from dew.objectives.lm.samples import Samples

        if self.sample_tokens == 0:
            return None
        prompt = tokenizer.encode(self.sample_prompt or "\n")
        if not prompt:
            raise ValueError(
                f"sample_prompt={self.sample_prompt!r} (empty continues a newline) makes no token of "
                f"tokenizer {self.tokenizer!r}; set --sample-prompt to a text it knows, or --sample-tokens 0"
            )
        if len(prompt) + self.sample_tokens > longest:
            raise ValueError(
                f"sample_prompt has {len(prompt)} tokens and sample_tokens={self.sample_tokens}, over the "
                f"model's max_seq_len={longest}; use at most --sample-tokens {max(0, longest - len(prompt))}"
            )
        return Samples(prompt, self.sample_tokens, self.sampling, tokenizer.decode)


def _parts(data: object) -> list[object]:
    return [part.data for part in data.parts] if isinstance(data, DataMixture) else [data]
