"""Read a published decoder: the model its `config.json` describes, and its tensors one after another.

Names, shapes and dtypes of all tensors are compared with the model's before the first of them is read.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict

from dew.data.text import HFTokenizer
from dew.interop.decoders.catalogue import Layout, family_of
from dew.interop.decoders.family import Family
from dew.interop.decoders.finite import all_finite
from dew.interop.decoders.mxfp4 import unpacked
from dew.interop.decoders.resaving import json_file, save_as_read
from dew.interop.decoders.stored import StoredTensor, stored_in
from dew.interop.decoders.tensors import Held, held_tensors, leaf_shapes
from dew.interop.decoders.translation import model_of, naming, refuse_unread
from dew.interop.pretrained import Pretrained
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.objectives.base import Variables
from dew.training.opening import named_dtype

if TYPE_CHECKING:
    from dew.data.text import Tokenizer
    from dew.inference.text import TextGeneration
    from dew.sampling.text import Sampling

GENERATION = "generation_config.json"
PREDICTING = ("num_nextn_predict_layers", "num_mtp_layers")
"""Fields that say how many layers predict further tokens."""
STACKED_EXPERTS = ".experts.gate_up_proj"
HEAD, EMBEDDING = "lm_head/kernel", "params/embed_tokens/embedding"


@dataclass(frozen=True, kw_only=True)
class PretrainedDecoder(Pretrained):
    """A published decoder: a `CausalTransformer` and its tree, ready to train or score.

    Attributes:
        tokenizer: of its `tokenizer.json`, or None where the folder has none.
        generation_config: what its `generation_config.json` says; empty where the folder has none.
        stored_dtypes: a tensor's published name -> the safetensors name of the dtype it is stored in.
    """

    model: CausalTransformer
    tokenizer: Tokenizer | None = None
    generation_config: Mapping[str, Any]
    stored_dtypes: Mapping[str, str] = field(repr=False)

    def save(self, directory: str | os.PathLike[str], *, variables: Mapping[str, Any] | None = None) -> None:
        """Write the decoder as its family's folder, with the tokenizer's and the generation's own files.

        Args:
            directory: made where it is missing; must hold nothing.
            variables: other weights of the model, in their own dtypes; None writes those that were read, in
                the dtypes they were stored in where that loses nothing.

        Raises:
            ValueError: variables that are not the model's.
            FileExistsError: the folder holds files.
        """
        save_as_read(
            self.model,
            self.variables if variables is None else variables,
            directory,
            source=Path(self.source),
            config=self.config,
            dtypes=self.stored_dtypes if variables is None else {},
        )

    def text_generation(self, *, sampling: Sampling | None = None) -> TextGeneration:
        """The decoder as a text task, with the policy, criteria, strategy and limits its files set.

        Args:
            sampling: a policy in place of the source's. The controls behind that are neither read nor judged;
                the criteria, the strategy and the number of continuations stay the source's.

        Raises:
            ValueError: a control that is not known or not done here, by its name and with the reason.
        """
        from dew.inference.text.source import source_task

        return source_task(
            self.model,
            self.variables,
            tokenizer=self.tokenizer,
            generation_config=self.generation_config,
            config=self.config,
            sampling=sampling,
        )


def read_decoder(
    folder: Path, config: Mapping[str, Any], *, dtype: str | None, param_dtype: str | None
) -> PretrainedDecoder:
    """The decoder in `folder`; see `dew.interop.load_pretrained`.

    Raises:
        ValueError: a field that the decoder does not compute, or a tensor that is missing, one too many, or
            of another shape.
        FileNotFoundError: the tensors.
    """
    family = family_of(config["model_type"])
    with naming(folder):
        refuse_unread(family, config)
    stored = stored_in(folder)
    if any(name.endswith(STACKED_EXPERTS) for name in stored) and family.stacked:
        family = replace(family, rows=family.stacked)
    with naming(folder):
        stored = renamed(family, unpacked(stored, config.get("quantization_config")))
    stored = without_predictions(family, config, stored, folder)
    first = next(iter(stored.values())).numpy_dtype if stored else np.dtype("float32")
    storage = chosen("param_dtype", param_dtype, first)
    computes = chosen("dtype", dtype, first)
    with naming(folder):
        model = model_of(family, config, dtype=computes, param_dtype=storage)
    doubled = family.gated and model.activation == "relu2"
    layout = Layout(family=family, doubled=doubled, fields=config)
    with naming(folder):
        variables = read_variables(model, layout, stored, None if param_dtype == "auto" else storage)
    found = (folder / "tokenizer.json").is_file()
    return PretrainedDecoder(
        source=str(folder),
        config=config,
        model=model,
        variables=variables,
        tokenizer=HFTokenizer(folder) if found else None,
        generation_config=json_file(folder / GENERATION),
        stored_dtypes={name: tensor.dtype for name, tensor in stored.items()},
    )


def chosen(setting: str, name: str | None, stored: Any) -> Any:
    """The dtype called `name`: None is float32, `auto` the stored one."""
    return jnp.dtype(jnp.float32) if name is None else named_dtype(setting, name) or stored


def renamed(family: Family, stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """The tensors under the family's own names, without its buffers."""
    bare = bool(family.prefix) and not any(name.startswith(family.prefix) for name in stored)
    whole = {row.name for row in family.rows}
    named: dict[str, StoredTensor] = {}
    for name, tensor in stored.items():
        if name.endswith(family.buffers):
            continue
        own = family.also.get(name, name)
        named[own if own in whole or not bare else f"{family.prefix}{own}"] = tensor
    return named


def without_predictions(
    family: Family, config: Mapping[str, Any], stored: Mapping[str, StoredTensor], folder: Path
) -> dict[str, StoredTensor]:
    """The tensors without those of layers that predict further tokens, which stand behind the last layer.

    Transformers passes over them too. Their number is told in a warning.
    """
    stated = [int(config.get(name) or 0) for name in PREDICTING if name in family.ignored]
    layers = int(config.get("num_hidden_layers") or 0)
    behind = tuple(f"model.layers.{layers + index}." for index in range(max(stated, default=0)))
    kept = {name: tensor for name, tensor in stored.items() if not name.startswith(behind)}
    if len(kept) < len(stored):
        warnings.warn(
            f"{folder} holds {len(stored) - len(kept)} tensors of layers that predict further tokens; they "
            "are not read",
            stacklevel=2,
        )
    return kept


def read_variables(
    model: CausalTransformer, layout: Layout, stored: Mapping[str, StoredTensor], dtype: Any
) -> Variables:
    """The model's tree, its parameters in `dtype` or, for None, as they are stored.

    A warning names the tensors that hold NaN or infinite numbers in that dtype.

    Raises:
        ValueError: a tensor that is missing, one too many, of another shape or dtype; a tied head that is
            not the embedding; a gate that is not the projection it should repeat.
    """
    whole = leaf_shapes(model)
    held = held_tensors(model, layout, whole)
    spare = (
        {row.name for row in layout.family.rows if row.paths == (HEAD,)} if model.tie_embeddings else set()
    )
    head = refuse_others(held, stored, spare)
    wanted = leaf_dtypes(held, stored, dtype)
    flat: dict[str, jax.Array] = {}
    slices: dict[str, np.ndarray] = {}
    broken: list[str] = []
    for each in held:
        parts = each.split(stored[each.name].read())
        for path, part in zip(each.paths, parts, strict=True):
            with np.errstate(over="ignore"):
                value = part.astype(wanted[path], copy=False)
            if not all_finite(value):
                broken.append(f"{each.name} as {value.dtype}")
            if each.index is not None:
                if path not in slices:
                    slices[path] = np.empty(whole[path], value.dtype)
                slices[path][each.index] = value
            elif path in flat:
                _require_equal(each.name, flat[path], value)
            else:
                flat[path] = jnp.asarray(np.ascontiguousarray(value))
    for path in list(slices):
        flat[path] = jnp.asarray(slices.pop(path))
    if head is not None:
        _require_tied(head, flat[EMBEDDING])
    if broken:
        warn_of(broken)
    return unflatten_dict(flat, sep="/")


def warn_of(broken: list[str]) -> None:
    """Name the tensors that hold numbers which are not finite, as those of a diverged model do."""
    others = f" and {len(broken) - 3} more" if len(broken) > 3 else ""
    warnings.warn(
        f"NaN or infinite numbers stand in {', '.join(broken[:3])}{others}; what the model computes from "
        "them is not finite. Fetch the folder again, or name a wider param_dtype if the stored numbers are "
        "too large for this one",
        stacklevel=2,
    )


def leaf_dtypes(held: list[Held], stored: Mapping[str, StoredTensor], dtype: Any) -> dict[str, np.dtype]:
    """What each leaf is kept in: parameters in `dtype` or, for None, as stored; the rest in float32.

    Raises:
        ValueError: a leaf whose tensors are stored in several dtypes, and `dtype` is None.
    """
    found: dict[str, np.dtype] = {}
    for each in held:
        own = stored[each.name].numpy_dtype
        for path in each.paths:
            wanted = own if dtype is None else np.dtype(dtype)
            wanted = wanted if path.startswith("params/") else np.dtype("float32")
            if found.setdefault(path, wanted) != wanted:
                raise ValueError(
                    f"the tensor {each.name} is stored in {own}, and others of its kind in {found[path]}; "
                    "name a param_dtype"
                )
    return found


def refuse_others(
    held: list[Held], stored: Mapping[str, StoredTensor], spare: set[str]
) -> StoredTensor | None:
    """Refuse tensors that are not the model's, before any of them is read.

    Args:
        held: the model's tensors.
        stored: the folder's.
        spare: names of a tied model's head, which a folder may hold beside the embedding.

    Returns:
        That head, where there is one.

    Raises:
        ValueError: naming the tensor.
    """
    wanted = {each.name: each for each in held}
    extra: StoredTensor | None = None
    for name in sorted(wanted.keys() | stored.keys()):
        if name not in stored:
            tie = (
                "; set tie_word_embeddings if the embedding is the head"
                if wanted[name].paths == (f"params/{HEAD}",)
                else ""
            )
            raise ValueError(f"the folder lacks the tensor {name}, which this architecture has{tie}")
        if name in spare:
            extra = stored[name]
            continue
        if name not in wanted:
            raise ValueError(f"the folder holds the tensor {name}, which this architecture lacks")
        if stored[name].shape != wanted[name].shape:
            raise ValueError(
                f"the tensor {name} has shape {stored[name].shape}, and config.json makes it "
                f"{wanted[name].shape}"
            )
        _ = stored[name].numpy_dtype
    return extra


def _require_equal(name: str, held: jax.Array, value: np.ndarray) -> None:
    if not np.array_equal(np.asarray(held), value):
        raise ValueError(
            f"{name} differs from the projection that it gates; relu gates a block by its own input "
            "alone here"
        )


def _require_tied(head: StoredTensor, embedding: jax.Array) -> None:
    table = np.asarray(embedding)
    value = head.read().astype(table.dtype, copy=False)
    if value.shape != table.shape or not np.array_equal(value, table):
        raise ValueError(
            f"config.json says tie_word_embeddings=true, and the tensor {head.name} is not the embedding; "
            "one of the two is wrong"
        )
