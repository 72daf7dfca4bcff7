"""Fetch the folder of a published model from the Hugging Face Hub: descriptions and tensors, never code."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
"""What a repository's name looks like: an owner and a name, or a name alone."""
FETCHED = ("*.json", "*.jinja", "*.txt", "*.model", "*.safetensors")
"""Files that are fetched; pickles and scripts are not."""
COPIES = ("original/*", "consolidated*", "onnx/*")
"""The same weights again, for other programs."""


def downloaded(repository: str, revision: str | None) -> Path:
    """The folder of `repository` in the Hub's cache, fetched where it is not there.

    Args:
        repository: `owner/name`.
        revision: a branch, a tag or a commit; None is the main branch.

    Raises:
        ImportError: huggingface-hub is not installed.
        FileNotFoundError: the repository or the revision cannot be had.
    """
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    except ImportError as error:
        raise ImportError(
            f"reading {repository} from the Hub needs huggingface-hub: pip install 'dew-core[hf]'",
            name="huggingface_hub",
        ) from error
    fetched: list[str] = list(FETCHED)
    copies: list[str] = list(COPIES)
    try:
        found = snapshot_download(
            repository, revision=revision, allow_patterns=fetched, ignore_patterns=copies
        )
        return Path(found)
    except (HfHubHTTPError, LocalEntryNotFoundError, HFValidationError) as error:
        at = "" if revision is None else f" at revision={revision!r}"
        raise FileNotFoundError(
            f"{repository}{at} is no folder here and not had from the Hub: {error}"
        ) from error
