"""What a published family of decoders is: data that says how its files spell a `CausalTransformer`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from dew.interop.decoders.forms import COLUMNS, KEPT, ROWS, Form
from dew.nn.backbones.causal_transformer import CausalTransformer

REQUIRED: Final = object()
"""The default of a field that a file has to have."""
WITHOUT_EFFECT = (
    "_attn_implementation_autoset",
    "_model_name_or_path",
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "attn_implementation",
    "auto_map",
    "bos_token_id",
    "chunk_size_feed_forward",
    "dtype",
    "eos_token_id",
    "finetuning_task",
    "gradient_checkpointing",
    "id2label",
    "initializer_range",
    "label2id",
    "model_type",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "problem_type",
    "pruned_heads",
    "return_dict",
    "sep_token_id",
    "task_specific_params",
    "tokenizer_class",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "unk_token_id",
    "use_bfloat16",
    "use_cache",
)
"""Fields of any family that say nothing of what the model computes: dropout is off outside training, and the
code that `auto_map` names is never run."""


def same(value: Any) -> Any:
    """The value as it is."""
    return value


def stated(config: Mapping[str, Any], name: str, default: Any) -> Any:
    """The field of a file, or `default` where it has none or a null."""
    value = config.get(name)
    return default if value is None else value


@dataclass(frozen=True)
class Field:
    """A published field and the fields of the model it sets.

    Attributes:
        name: in `config.json`.
        own: in the model, dotted into its records (`bias.qkv`); several get one value.
        default: what a file without the field means; `REQUIRED` where it must have it.
        read: the model's value, from the file's.
        write: the file's value, from the model's.
        nullable: a null in the file is the model's None; elsewhere it is as if the field were not there.
    """

    name: str
    own: str | tuple[str, ...]
    default: Any = REQUIRED
    read: Callable[[Any], Any] = same
    write: Callable[[Any], Any] = same
    nullable: bool = False

    @property
    def targets(self) -> tuple[str, ...]:
        """`own` as a tuple."""
        return (self.own,) if isinstance(self.own, str) else self.own


@dataclass(frozen=True)
class Group:
    """Published fields that are read together.

    Attributes:
        names: in `config.json`.
        read: the model's values by dotted name, from the whole file.
        write: the file's fields, from the model.
        spelled: a name in the model's messages -> the file's, where the two differ.
    """

    names: tuple[str, ...]
    read: Callable[[Mapping[str, Any]], dict[str, Any]]
    write: Callable[[CausalTransformer], dict[str, Any]]
    spelled: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Row:
    """A published tensor and the leaves it holds.

    `{layer}` in the name and in the paths stands for a layer's index, and `{expert}` in the name for an
    expert's, whose slice of the leaf it then is. A tensor whose leaves the model does not have is none of its
    tensors.

    Attributes:
        name: in the file.
        paths: under `params`, or with the collection in front.
        form: how it holds them.
        index: which slice of the leaf's first dimension it is, or None for the whole leaf.
    """

    name: str
    paths: tuple[str, ...]
    form: Form = KEPT
    index: int | None = None


@dataclass(frozen=True, kw_only=True)
class Family:
    """An architecture as its files spell it.

    Attributes:
        model_type: `config.json`'s name of it; also the name of the reader.
        architecture: the class in transformers.
        precedence: among the families that can write a model the one of the smallest number does. Reading
            goes by `model_type` alone.
        fields: read and written.
        always: what the model's fields are whatever the file says, by dotted name.
        off: fields with the one value that is read, which files need not have; they are not written.
        ignored: fields without effect, beyond those of any family.
        rows: its tensors.
        stacked: the tensors of files that hold all experts of a layer in one, which are read too; empty where
            there is one way to hold them.
        gated: `relu2` is written as a gated block whose gate and up projections are one matrix, `relu(z) z`.
        whole_heads: transformers refuses a model whose heads do not divide its width.
        prefix: of the tensors' names, which files of the bare model lack.
        buffers: ends of names of tensors that state no parameter; they are passed over.
        also: another name that files have for a tensor -> its name.
    """

    model_type: str
    architecture: str
    precedence: int
    fields: tuple[Field | Group, ...]
    rows: tuple[Row, ...]
    always: Mapping[str, Any]
    off: Mapping[str, Any]
    ignored: tuple[str, ...] = ()
    stacked: tuple[Row, ...] = ()
    gated: bool = True
    whole_heads: bool = False
    prefix: str = ""
    buffers: tuple[str, ...] = (".rotary_emb.inv_freq",)
    also: Mapping[str, str] = MappingProxyType({})

    @property
    def read_fields(self) -> tuple[str, ...]:
        """The published fields that decide what the model computes."""
        names = [(part.name,) if isinstance(part, Field) else part.names for part in self.fields]
        return tuple(name for group in names for name in group)


def linear(name: str, path: str, form: Form = ROWS) -> tuple[Row, Row]:
    """The rows of a projection: its weight and its bias."""
    return fused(name, (path,), form)


def fused(name: str, paths: tuple[str, ...], form: Form = ROWS) -> tuple[Row, Row]:
    """The rows of several projections in one: their weight and their bias."""
    return (
        Row(f"{name}.weight", tuple(f"{path}/kernel" for path in paths), form),
        Row(f"{name}.bias", tuple(f"{path}/bias" for path in paths), COLUMNS if form is ROWS else form),
    )


def norm(name: str, path: str) -> tuple[Row, Row]:
    """The rows of a norm: its scale and its bias."""
    return Row(f"{name}.weight", (f"{path}/scale",)), Row(f"{name}.bias", (f"{path}/bias",))
