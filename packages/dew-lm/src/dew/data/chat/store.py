"""Rendered conversations in Dew's cache: ids, a role for each, and where every text begins.

`train.bin` and `meta.json` are those of a token corpus (`dew.data.tokens.store`). Beside them stand
`train.roles`, a byte for each id, `train.bounds`, little-endian int64 [texts + 1], and `chat.json` with the
counts and a digest of the roles.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import batched
from pathlib import Path
from typing import Any

import numpy as np

from dew.data.chat.choose import chat_template
from dew.data.chat.conversation import Conversation, conversation
from dew.data.chat.encode import RoleEncoder
from dew.data.chat.reading import Record, read_records
from dew.data.chat.roles import Role
from dew.data.chat.template import ChatTemplate
from dew.data.chat.turns import Rewritten, Spoken, spoken
from dew.data.text.built import built
from dew.data.text.cache import is_complete
from dew.data.text.tokenizer import Tokenizer
from dew.data.tokens.source import Int64s
from dew.data.tokens.store import CorpusMeta, CorpusWriter

RECIPE = 1
"""Rises when the same conversations come to other ids or roles."""
SHEET = "chat.json"
AT_ONCE = 256
"""Texts that are encoded together."""
TOOLS = "tools"
"""The column of the functions the assistant may call."""


@dataclass
class ChatCounts:
    """What became of the conversations of a split.

    Attributes:
        conversations: read.
        texts: they are rendered to.
        split: conversations taken apart because the template rewrites earlier turns.
        silent: texts in which the assistant says nothing.
    """

    conversations: int = 0
    texts: int = 0
    split: int = 0
    silent: int = 0


@dataclass(frozen=True, kw_only=True)
class ChatSource:
    """Conversations and how they are rendered.

    Attributes:
        files: of the splits `train` and, where it has files of its own, `val`.
        tokenizer: makes the ids.
        column: of the messages.
        val_fraction: part of the training conversations held out where `val` has no files, by their hash.
        template: a file in the place of the tokenizer's own template, or None.
        options: further names for the template.
        today: the day `strftime_now` gives, or None.
        rewritten: what is done where the template rewrites earlier turns.
    """

    files: Mapping[str, list[Path]]
    tokenizer: Tokenizer
    column: str
    val_fraction: float
    template: str | None
    options: Mapping[str, Any]
    today: str | None
    rewritten: Rewritten

    @cached_property
    def templates(self) -> dict[bool, ChatTemplate]:
        """The template of conversations without tools and with."""
        return {
            tools: chat_template(
                self.tokenizer,
                file=self.template,
                with_tools=tools,
                options=self.options,
                today=self.today,
            )
            for tools in (False, True)
        }

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits there may be."""
        return ("train", "val") if "val" in self.files or self.val_fraction else ("train",)

    def key(self) -> str:
        """Identifies what is rendered."""
        files = {split: [_identity(path) for path in paths] for split, paths in self.files.items()}
        templates = {str(tools): each.source for tools, each in self.templates.items()}
        record = {
            "recipe": RECIPE,
            "tokenizer": self.tokenizer.fingerprint(),
            "files": files,
            "templates": templates,
            "special_tokens": self.templates[False].special_tokens,
            **{name: getattr(self, name) for name in ("column", "val_fraction", "today", "rewritten")},
            "options": dict(self.options),
        }
        return hashlib.blake2b(json.dumps(record, sort_keys=True).encode(), digest_size=16).hexdigest()

    def conversations(self, split: str) -> Iterator[Conversation]:
        """Those of `split`, in the order of the files.

        Raises:
            ValueError: a record without the column, or with something else in it than messages.
        """
        from_train = "val" not in self.files
        for file in self.files["train" if from_train else split]:
            for place, record in read_records(file):
                if self.column not in record:
                    raise ValueError(
                        f"{place} has no {self.column!r} (it has {', '.join(record)}); name the column of "
                        "the "
                        "messages as data.column"
                    )
                if not from_train or self._held_out(record) == (split == "val"):
                    yield conversation(record[self.column], record.get(TOOLS), place)

    def _held_out(self, record: Record) -> bool:
        if not self.val_fraction:
            return False
        text = json.dumps(record[self.column], sort_keys=True, default=str).encode()
        number = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())
        return number < self.val_fraction * 2**64

    def texts(self, split: str, counts: ChatCounts) -> Iterator[Spoken]:
        """The rendered conversations of `split`; counts them."""
        for talk in self.conversations(split):
            found = spoken(self.templates[talk.tools is not None], talk, rewritten=self.rewritten)
            counts.conversations += 1
            counts.texts += len(found)
            counts.split += len(found) > 1
            counts.silent += sum(not (text.roles == Role.ASSISTANT).any() for text in found)
            yield from found


@dataclass(frozen=True, kw_only=True)
class ChatStore:
    """An open folder of rendered conversations.

    Attributes:
        directory: the folder.
        meta: of its ids.
        counts: by split.
        roles: digest of the roles.
    """

    directory: Path
    meta: CorpusMeta
    counts: Mapping[str, ChatCounts]
    roles: str

    def bounds(self, split: str) -> Int64s:
        """[texts + 1], where each begins, and the end of the last."""
        return np.fromfile(self.directory / f"{split}.bounds", "<i8").astype(np.int64)


def rendered(source: ChatSource) -> ChatStore:
    """The conversations as ids and roles, from the cache or rendered now.

    Raises:
        ValueError: what cannot be read or rendered, with its place.
    """
    directory = built("chat", source.key(), lambda draft: _build(draft, source), is_complete)
    sheet = json.loads((directory / SHEET).read_bytes())
    counts = {split: ChatCounts(**each) for split, each in sheet["counts"].items()}
    return ChatStore(
        directory=directory, meta=CorpusMeta.read(directory), counts=counts, roles=sheet["roles"]
    )


def _build(draft: Path, source: ChatSource) -> None:
    tokenizer = source.tokenizer
    bos = source.templates[False].special_tokens.get("bos_token")
    encoder = RoleEncoder(tokenizer, bos)
    counts = {split: ChatCounts() for split in source.splits}
    digest = hashlib.blake2b(digest_size=16)
    with CorpusWriter(
        draft,
        tokenizer=tokenizer.name,
        tokenizer_fingerprint=tokenizer.fingerprint(),
        vocab_size=tokenizer.vocab_size,
    ) as writer:
        for split in source.splits:
            bounds = [0]
            with (draft / f"{split}.roles").open("wb") as roles:
                for group in batched(source.texts(split, counts[split]), AT_ONCE):
                    for row in encoder.rows(group):
                        writer.append(split, row.ids.astype(np.uint32))
                        roles.write(row.roles.tobytes())
                        digest.update(row.roles.tobytes())
                        bounds.append(bounds[-1] + len(row.ids))
            np.asarray(bounds, "<i8").tofile(draft / f"{split}.bounds")
        sheet = {
            "counts": {split: asdict(each) for split, each in counts.items()},
            "roles": digest.hexdigest(),
        }
        (draft / SHEET).write_text(json.dumps(sheet, indent=2) + "\n")
        writer.finish()


def _identity(path: Path) -> tuple[str, int, int]:
    found = path.stat()
    return (os.path.abspath(path), found.st_size, found.st_mtime_ns)
