"""A run's tokenizer as the files of the tokenizers library and transformers.

The files encode a text as the run did: no special token is added in front of or behind it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from dew.data.chat.choose import special_tokens
from dew.data.text import ByteTokenizer, HFTokenizer
from dew.sampling.decoding.spelling import byte_alphabet

TEMPLATE = "chat_template.jinja"
CARRIED = ("additional_special_tokens", "extra_special_tokens", "chat_template")
"""Fields of a tokenizer's configuration that are written again as they are."""


def write_tokenizer(folder: Path, tokenizer: object, *, longest: int) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json` of `tokenizer`, with its chat template.

    Args:
        folder: where to.
        tokenizer: a `ByteTokenizer` or an `HFTokenizer`.
        longest: tokens the model reads.

    Raises:
        ValueError: a tokenizer of another kind.
    """
    if isinstance(tokenizer, ByteTokenizer):
        backend, special = byte_level(), {}
    elif isinstance(tokenizer, HFTokenizer):
        backend, special = _plain(tokenizer.backend), _special_tokens(tokenizer)
    else:
        raise ValueError(
            f"tokenizer {type(tokenizer).__name__} has no tokenizer.json; export a run that trained on "
            "byte or on a tokenizer file"
        )
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": longest,
        "clean_up_tokenization_spaces": False,
        **special,
    }
    template = tokenizer.folder / TEMPLATE if isinstance(tokenizer, HFTokenizer) else None
    if template is not None and template.is_file():
        shutil.copyfile(template, folder / TEMPLATE)
    (folder / "tokenizer.json").write_text(backend.to_str(pretty=True) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def byte_level() -> tokenizers.Tokenizer:
    """The tokenizer of 256 bytes: id b is byte b, for every text.

    It is a byte-pair encoding without merges over the byte-level alphabet, which spells byte b as one
    printable character.
    """
    backend = tokenizers.Tokenizer(models.BPE(byte_alphabet(), []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def _plain(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A copy that adds no special token, which is how a run encodes."""
    record = json.loads(backend.to_str())
    if backend.num_special_tokens_to_add(False):
        record["post_processor"] = None
    return tokenizers.Tokenizer.from_str(json.dumps(record))


def _special_tokens(tokenizer: HFTokenizer) -> dict[str, Any]:
    """What the tokenizer's own configuration says of special tokens and the template."""
    ids = {"eos_token": tokenizer.eos_id, "pad_token": tokenizer.pad_id}
    found = {name: tokenizer.backend.id_to_token(each) for name, each in ids.items() if each is not None}
    kept = {name: tokenizer.config[name] for name in CARRIED if tokenizer.config.get(name) is not None}
    return found | special_tokens(tokenizer) | kept
