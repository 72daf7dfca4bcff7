"""`ChatMessages`: a run trains on conversations. Importing it imports no JAX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dew.data.chat.rendered_config import RenderedRecords

if TYPE_CHECKING:
    from dew.data.chat.store import ChatSource
    from dew.data.records import Records


@dataclass(frozen=True, kw_only=True)
class ChatMessages(RenderedRecords):
    """Conversations, rendered by the tokenizer's own chat template, several to a row.

    A record holds its messages in `column` (objects with `role` and `content`, and what the template reads
    beside them) and may hold `tools`. Rows are packed as `PackedTokens` packs documents, and say whose every
    token is (`text_roles`, values of `dew.data.chat.Role`). Ids and roles are kept in Dew's cache folder and
    memory-mapped.

    Attributes:
        path: a JSONL, Parquet or Arrow file, a folder of them, or one that `datasets` saved.
        column: of the messages.
        template: a Jinja file in the place of the tokenizer's own template.
        template_options: further names for the template, as `{"enable_thinking": false}`.
        today: the day that a template which asks for it gets, as 2026-01-31.
        seq_len: predictions in a row without padding.
        val_fraction: part of the conversations held out by their hash where the path has no validation split
            of its own; 0 holds out none.
        val_rows: at most this many validation rows, spread evenly; unset takes all.
        too_long: what is done with a text of more than `seq_len + 1` ids: `leave_out`, `cut` its end off, or
            `refuse`. The description of what is loaded counts them.
        rewritten: what is done with a conversation whose earlier turns the template rewrites, as one that
            strips their reasoning: `refuse` it, or `split` it into one text for every turn that is learned.

    Raises:
        ValueError: a number outside its range.
    """

    column: str = "messages"
    seq_len: int = 1024
    val_rows: int | None = None
    too_long: Literal["leave_out", "cut", "refuse"] = "leave_out"
    rewritten: Literal["refuse", "split"] = "refuse"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seq_len < 1:
            raise ValueError(f"data.seq_len={self.seq_len} must be at least 1")
        if self.val_rows is not None and self.val_rows < 1:
            raise ValueError(f"data.val_rows={self.val_rows} must be at least 1, or unset for all")

    def records(self, *, tokenize: object = None) -> Records:
        """Render the conversations, or find them in the cache, and plan their rows.

        Args:
            tokenize: the run's tokenizer.

        Raises:
            FileNotFoundError: nothing at `path`, or no such template file.
            ImportError: the files need pyarrow and it is not installed.
            ValueError: no path, records without messages, a tokenizer without a template, a template that
                refuses or rewrites a conversation, or no text that fits.
            TypeError: `tokenize` is no tokenizer, or one that does not say where its tokens stand.
        """
        from dew.data.chat.rows import chat_records
        from dew.data.chat.store import rendered

        source = self.source(tokenize)
        return chat_records(
            rendered(source),
            seq_len=self.seq_len,
            seed=self.seed,
            val_rows=self.val_rows,
            too_long=self.too_long,
            vocab_size=source.tokenizer.vocab_size,
        )

    def source(self, tokenize: object) -> ChatSource:
        """What `records` renders."""
        from dew.data.chat.store import ChatSource

        fields = self.source_fields(tokenize)
        return ChatSource(column=self.column, rewritten=self.rewritten, **fields)
