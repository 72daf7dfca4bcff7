"""A decoder as a folder that transformers loads: configuration, tensors, tokenizer and sampling policy."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from dew.inference.text import RunProcessor, TextGeneration
from dew.interop.decoders.catalogue import layout_of
from dew.interop.decoders.shards import Tensor, write_tensors
from dew.interop.decoders.tensors import published
from dew.interop.decoders.tokens import write_tokenizer
from dew.nn.backbones.causal_transformer import CausalTransformer
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

    Raises:
        ValueError: a model or a tokenizer without a published layout, or leaves it has no name for.
        FileExistsError: the folder holds something.
    """
    layout = layout_of(model, family)
    decoder = cast("CausalTransformer", model)
    policy = sampling or Sampling()
    tensors = published(decoder, variables, layout)
    folder = empty_folder(directory)
    config = {**layout.fields, **_token_ids(policy), "torch_dtype": stored_dtype(tensors), "use_cache": True}
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", generation_config(policy, max_new_tokens))
    if tokenizer is not None:
        write_tokenizer(folder, tokenizer, longest=decoder.max_seq_len)
    write_tensors(folder, tensors, max_shard_bytes)


def write_task(task: object, directory: str | os.PathLike[str]) -> None:
    """Write a text task's model, weights, tokenizer and policy: the writer of the decoder's runs.

    Raises:
        ValueError: a task of another kind, and what `save_pretrained_decoder` raises.
    """
    if not isinstance(task, TextGeneration):
        raise ValueError(f"{type(task).__name__} has no published layout as a decoder; TextGeneration has")
    processor = task.processor
    save_pretrained_decoder(
        task.model,
        task.variables,
        directory,
        tokenizer=processor.tokenizer if isinstance(processor, RunProcessor) else processor,
        sampling=task.sampling,
        max_new_tokens=task.max_new_tokens,
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
