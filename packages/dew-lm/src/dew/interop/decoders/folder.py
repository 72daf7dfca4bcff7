"""A decoder as a folder that transformers loads: configuration, tensors, tokenizer and sampling policy."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from dew.data.chat.choose import special_tokens
from dew.data.text import HFTokenizer
from dew.inference.text import RunProcessor, TextGeneration
from dew.inference.text.published import json_object
from dew.interop.decoders.catalogue import layout_of
from dew.interop.decoders.shards import Tensor, write_tensors
from dew.interop.decoders.tensors import published
from dew.interop.decoders.tokens import write_tokenizer
from dew.nn.backbones.causal_transformer import CausalTransformer
from dew.objectives.lm.config import PREVIEW
from dew.objectives.lm.kept import CONTROLS, TOKEN_IDS
from dew.sampling.text import Sampling

MAX_SHARD_BYTES = 5_000_000_000


def save_pretrained_decoder(
    model: object,
    variables: Mapping[str, Any],
    directory: str | os.PathLike[str],
    *,
    tokenizer: object | None = None,
    sampling: Sampling | None = None,
    max_new_tokens: int | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    family: str | None = None,
    controls: Mapping[str, Any] | None = None,
) -> None:
    """Write `model` with `variables` in a published layout into the folder `directory`.

    Args:
        model: a `CausalTransformer` that a published architecture computes, see `layout_of`.
        variables: its complete tree; tensors keep their dtypes.
        directory: made where it is missing; must hold nothing.
        tokenizer: a `ByteTokenizer` or an `HFTokenizer`; None writes no tokenizer.
        sampling: the policy that `generation_config.json` states; None is `Sampling()`.
        max_new_tokens: the number of tokens it states; None states none.
        max_shard_bytes: tensors beyond this go to several files with an index.
        family: the `model_type` to write; None takes the first that computes the model, see `layout_of`.
        controls: what `generation_config.json` says in place of the policy and the number of tokens; the ids
            that it lacks are those of the policy, else of the tokenizer.

    Raises:
        ValueError: a model or a tokenizer without a published layout, or leaves it has no name for.
        FileExistsError: the folder holds something.
    """
    layout = layout_of(model, family)
    decoder = cast("CausalTransformer", model)
    policy = sampling or Sampling()
    tensors = published(decoder, variables, layout)
    folder = empty_folder(directory)
    said = {**generation_config(policy, max_new_tokens), **_of_tokenizer(tokenizer, policy)}
    said = said if controls is None else {**_ids_of(said), **controls}
    config = {**layout.fields, **_ids_of(said), "torch_dtype": stored_dtype(tensors), "use_cache": True}
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", said)
    if tokenizer is not None:
        write_tokenizer(folder, tokenizer, longest=decoder.max_seq_len)
    write_tensors(folder, tensors, max_shard_bytes)


def write_task(task: object, directory: str | os.PathLike[str]) -> None:
    """Write a text task's model, weights, tokenizer and policy: the writer of the decoder's runs.

    The length of the run's previews is no limit of its model, so none is written. A run that started from a
    published model keeps that model's generation controls with its tokenizer: their special ids are written,
    and all of them where the run's policy is the recipe's own.

    Raises:
        ValueError: a task of another kind, and what `save_pretrained_decoder` raises.
    """
    if not isinstance(task, TextGeneration):
        raise ValueError(f"{type(task).__name__} has no published layout as a decoder; TextGeneration has")
    processor = task.processor
    tokenizer = processor.tokenizer if isinstance(processor, RunProcessor) else processor
    save_pretrained_decoder(
        task.model,
        task.variables,
        directory,
        tokenizer=tokenizer,
        sampling=task.sampling,
        controls=_controls(tokenizer, task.sampling),
    )


def generation_config(sampling: Sampling, max_new_tokens: int | None = None) -> dict[str, Any]:
    """`generation_config.json` for the policy.

    transformers applies temperature, top-k, top-p and min-p in this order, as the policy does. What the
    policy leaves off is stated where the reader's default is on: `top_k` 0 keeps every token.
    """
    drawn: dict[str, Any] = {"do_sample": sampling.temperature > 0}
    if sampling.temperature > 0:
        drawn |= {"temperature": sampling.temperature, "top_k": sampling.top_k or 0, "top_p": sampling.top_p}
        drawn |= {"min_p": sampling.min_p} if sampling.min_p > 0 else {}
    if max_new_tokens is not None:
        drawn["max_new_tokens"] = max_new_tokens
    return drawn | _token_ids(sampling)


def _controls(tokenizer: object, sampling: Sampling) -> dict[str, Any] | None:
    """The controls that a run keeps of the model it started from, with its own policy; None for none."""
    kept = json_object(str(tokenizer.folder / CONTROLS)) if isinstance(tokenizer, HFTokenizer) else {}
    if not kept:
        return None
    ends = {"eos_token_id": _token_ids(sampling)["eos_token_id"]} if sampling.eos_ids else {}
    if replace(sampling, eos_id=None, pad_id=0) == PREVIEW:
        return {**kept, **ends}
    return {**generation_config(sampling), **_ids_of(kept), **ends}


def _ids_of(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: record[name] for name in TOKEN_IDS if name in record}


def _of_tokenizer(tokenizer: object, sampling: Sampling) -> dict[str, Any]:
    """The special ids of a tokenizer file, those that the policy has left out."""
    if not isinstance(tokenizer, HFTokenizer):
        return {}
    begin = special_tokens(tokenizer).get("bos_token")
    ids = {"bos_token_id": None if begin is None else tokenizer.backend.token_to_id(begin)}
    if not sampling.eos_ids:
        ids |= {"eos_token_id": tokenizer.eos_id, "pad_token_id": tokenizer.pad_id}
    return {name: each for name, each in ids.items() if each is not None}


def _token_ids(sampling: Sampling) -> dict[str, Any]:
    """The special ids; null where there is none, since the architectures' defaults name ids of their own."""
    ends = list(sampling.eos_ids)
    return {
        "bos_token_id": None,
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        # Only a row that ended is padded.
        "pad_token_id": sampling.pad_id if ends else None,
    }


def stored_dtype(tensors: list[Tensor]) -> str:
    """The widest dtype among `tensors`, which `config.json` states."""
    return max((tensor.dtype for tensor in tensors), key=lambda dtype: dtype.itemsize).name


def empty_folder(directory: str | os.PathLike[str]) -> Path:
    """`directory`, made where it is missing.

    Raises:
        FileExistsError: it holds something.
    """
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileExistsError(f"directory={folder} holds files; give an empty or a new folder")
    return folder


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write `record` to `path`, readable and without numbers that JSON lacks."""
    path.write_text(json.dumps(record, indent=2, allow_nan=False) + "\n")
