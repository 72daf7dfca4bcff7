"""What a run keeps of its tokenizer's folder, so that what it trained is used without that folder.

In the run's folder stands `tokenizer/`: the tokenizer's file and configuration, the chat template that the
run renders with, and the generation controls of the published model that it started from. A run in a bucket
and a run on bytes keep nothing.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dew.data.text.tokenizer import tokenizer_file
from dew.inference.text.published import json_object

FOLDER = "tokenizer"
TOKENIZER, TEMPLATE = "tokenizer.json", "chat_template.jinja"
BESIDE = ("tokenizer_config.json", "special_tokens_map.json", TEMPLATE)
"""Files that say more about a tokenizer, copied as they are."""
CONTROLS = "generation_config.json"
TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def kept_tokenizer(directory: str) -> str | None:
    """The folder of the tokenizer that the run in `directory` keeps, or None."""
    folder = Path(directory) / FOLDER
    return str(folder) if "://" not in directory and (folder / TOKENIZER).is_file() else None


def keeps_nothing_more(directory: str, tokenizer: str) -> bool:
    """Whether the run in `directory` has its copies for good, as one with a checkpoint, or takes none."""
    settled = kept_tokenizer(directory) is not None and _has_checkpoint(directory)
    return tokenizer == "byte" or "://" in directory or settled


def keep_tokenizer(
    directory: str, tokenizer: str, *, template: str | None = None, controls: Mapping[str, Any] | None = None
) -> None:
    """Copy the tokenizer of the run in `directory` into it.

    Args:
        directory: of the run.
        tokenizer: a tokenizer file or folder.
        template: a Jinja file that the run renders with in place of the tokenizer's own template.
        controls: the generation controls of the published model that it started from.

    Raises:
        FileNotFoundError: no such tokenizer or template.
    """
    folder, file = Path(directory) / FOLDER, tokenizer_file(Path(tokenizer).expanduser())
    partial = folder.with_name(f".{FOLDER}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    shutil.copyfile(file, partial / TOKENIZER)
    for name in BESIDE:
        if (file.parent / name).is_file():
            shutil.copyfile(file.parent / name, partial / name)
    if template is not None:
        shutil.copyfile(Path(template).expanduser(), partial / TEMPLATE)
    if controls is not None:
        (partial / CONTROLS).write_text(json.dumps(dict(controls), indent=2) + "\n")
    if folder.is_dir():
        shutil.rmtree(folder)
    partial.replace(folder)


def source_controls(folder: Path) -> dict[str, Any]:
    """A published model's `generation_config.json`, with the ids that `config.json` alone names.

    Raises:
        ValueError: a file that holds no JSON object.
    """
    generation, config = (json_object(str(folder / name)) for name in (CONTROLS, "config.json"))
    text = config.get("text_config")
    sources: tuple[Any, ...] = (generation, config, text if isinstance(text, Mapping) else {})
    ids = {
        name: next((each[name] for each in sources if each.get(name) is not None), None) for name in TOKEN_IDS
    }
    return {**generation, **{name: found for name, found in ids.items() if found is not None}}


def _has_checkpoint(directory: str) -> bool:
    checkpoints = Path(directory) / "checkpoints"
    return checkpoints.is_dir() and any(entry.name.isdigit() for entry in checkpoints.iterdir())
