"""`Prompts` and `PreferencePairs`: what a policy answers, and which answer is preferred. No JAX at import."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dew.data.chat.rendered_config import RenderedRecords

if TYPE_CHECKING:
    from dew.data.records import Records


@dataclass(frozen=True, kw_only=True)
class Prompts(RenderedRecords):
    """Prompts that a rollout continues, from JSONL, Parquet or Arrow files.

    A record's prompt is a text, or messages that the tokenizer's chat template renders, with the header that
    asks the assistant to speak. A row holds `prompt` and `prompt_mask`, the ids first, then filling.

    Attributes:
        path: a JSONL, Parquet or Arrow file, a folder of them, or one that `datasets` saved.
        column: of the prompt.
        prompt_tokens: slots of a row.
        template: a Jinja file in the place of the tokenizer's own template.
        template_options: further names for the template.
        today: the day that a template which asks for it gets, as 2026-01-31.
        val_fraction: part of the records held out by their hash where the path has no validation split.
        too_long: what is done with a prompt of more ids: `leave_out` or `refuse`. The description of what is
            loaded counts them.

    Raises:
        ValueError: a number outside its range.
    """

    column: str = "prompt"
    prompt_tokens: int = 256
    too_long: Literal["leave_out", "refuse"] = "leave_out"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prompt_tokens < 1:
            raise ValueError(f"data.prompt_tokens={self.prompt_tokens} must be at least 1")

    def records(self, *, tokenize: object = None) -> Records:
        """Render the prompts, or find them in the cache.

        Args:
            tokenize: the run's tokenizer.

        Raises:
            FileNotFoundError: nothing at `path`, or no such template file.
            ImportError: the files need pyarrow and it is not installed.
            ValueError: no path, records without prompts, messages without a template, or no prompt that fits.
            TypeError: `tokenize` is no tokenizer, or one that does not say where its tokens stand.
        """
        from dew.data.chat.answer_rows import answer_records
        from dew.data.chat.answers import PromptSource
        from dew.data.chat.store import rendered

        common = self.source_fields(tokenize)
        return answer_records(
            rendered(PromptSource(column=self.column, **common)),
            pairs=False,
            width=self.prompt_tokens,
            seed=self.seed,
            refuse_long=self.too_long == "refuse",
            vocab_size=common["tokenizer"].vocab_size,
            room="data.prompt_tokens",
        )


@dataclass(frozen=True, kw_only=True)
class PreferencePairs(RenderedRecords):
    """Two answers to a prompt, of which one is preferred, from JSONL, Parquet or Arrow files.

    Prompt and answers are texts, or messages that the tokenizer's chat template renders; a record without a
    prompt holds whole conversations that begin alike. A row holds `chosen` and `rejected`, the prompt's ids
    and an answer's, and masks of the answers' targets.

    Attributes:
        path: a JSONL, Parquet or Arrow file, a folder of them, or one that `datasets` saved.
        prompt: column of the prompt, which every record must have; unset takes `prompt` of those that have
            it.
        chosen: column of the preferred answer.
        rejected: column of the other.
        seq_len: predictions in a row.
        template: a Jinja file in the place of the tokenizer's own template.
        template_options: further names for the template.
        today: the day that a template which asks for it gets, as 2026-01-31.
        val_fraction: part of the records held out by their hash where the path has no validation split.
        too_long: what is done with a pair of which one has more than `seq_len + 1` ids: `leave_out` or
            `refuse`. The description of what is loaded counts them.

    Raises:
        ValueError: a number outside its range.
    """

    prompt: str | None = None
    chosen: str = "chosen"
    rejected: str = "rejected"
    seq_len: int = 1024
    too_long: Literal["leave_out", "refuse"] = "leave_out"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seq_len < 1:
            raise ValueError(f"data.seq_len={self.seq_len} must be at least 1")

    def records(self, *, tokenize: object = None) -> Records:
        """Render the pairs, or find them in the cache.

        Args:
            tokenize: the run's tokenizer.

        Raises:
            FileNotFoundError: nothing at `path`, or no such template file.
            ImportError: the files need pyarrow and it is not installed.
            ValueError: no path, records without pairs, messages without a template, or no pair that fits.
            TypeError: `tokenize` is no tokenizer, or one that does not say where its tokens stand.
        """
        from dew.data.chat.answer_rows import answer_records
        from dew.data.chat.answers import PairSource
        from dew.data.chat.store import rendered

        common = self.source_fields(tokenize)
        source = PairSource(prompt=self.prompt, chosen=self.chosen, rejected=self.rejected, **common)
        return answer_records(
            rendered(source),
            pairs=True,
            width=self.seq_len + 1,
            seed=self.seed,
            refuse_long=self.too_long == "refuse",
            vocab_size=common["tokenizer"].vocab_size,
            room="data.seq_len",
        )
