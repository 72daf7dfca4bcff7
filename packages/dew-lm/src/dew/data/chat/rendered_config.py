"""What datasets of rendered records share: where they lie, and how they become text. No JAX at import."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypedDict

from dew.config.arguments import JsonDict
from dew.data.config import IN_PROCESS, Loading, RecordSpec

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from dew.data.text.tokenizer import Tokenizer


class SourceFields(TypedDict):
    """What a `RecordSource` is made of, whatever its records hold."""

    files: Mapping[str, list[Path]]
    tokenizer: Tokenizer
    val_fraction: float
    template: str | None
    options: Mapping[str, Any]
    today: str | None


@dataclass(frozen=True, kw_only=True)
class RenderedRecords(RecordSpec, ABC):
    """Records of files that a run's tokenizer, and its chat template, make into ids.

    Attributes:
        path: a JSONL, Parquet or Arrow file, a folder of them, or one that `datasets` saved.
        template: a Jinja file in the place of the tokenizer's own template.
        template_options: further names for the template.
        today: the day that a template which asks for it gets, as 2026-01-31.
        val_fraction: part of the records held out by their hash where the path has no validation split.

    Raises:
        ValueError: a fraction outside its range.
    """

    path: str | None = None
    template: str | None = None
    template_options: JsonDict = field(default_factory=dict)
    today: str | None = None
    val_fraction: float = 0.05
    loading: Loading = IN_PROCESS

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.val_fraction < 1:
            raise ValueError(f"data.val_fraction={self.val_fraction} must be at least 0 and below 1")

    def source_fields(self, tokenize: object) -> SourceFields:
        """The fields of the source that `records` renders.

        Raises:
            TypeError: `tokenize` is no tokenizer.
            ValueError: no path.
            FileNotFoundError: nothing there.
        """
        from pathlib import Path

        from dew.data.chat.reading import record_files
        from dew.data.text.tokenizer import Tokenizer

        if not isinstance(tokenize, Tokenizer):
            raise TypeError(f"tokenize={tokenize!r} must be the run's tokenizer: records are text")
        if self.path is None:
            raise ValueError("data.path is not set; name a file or a folder of records")
        return SourceFields(
            files=record_files(Path(self.path).expanduser()),
            tokenizer=tokenize,
            val_fraction=self.val_fraction,
            template=self.template,
            options=self.template_options,
            today=self.today,
        )
