"""Rendered conversations in Dew's cache: ids, a role for each, and where every text begins.

`train.bin` and `meta.json` are those of a token corpus (`dew.data.tokens.store`). Beside them stand
`train.roles`, a byte for each id, `train.bounds`, little-endian int64 [texts + 1], `train.targets`,
little-endian int32 [texts, roles], where in a text the first target of each role stands, and `chat.json` with
the counts and a digest of the roles.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from itertools import batched
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dew.data.chat.choose import chat_template, special_tokens
from dew.data.chat.conversation import conversation, read_list
from dew.data.chat.encode import RoleEncoder
from dew.data.chat.reading import Record, read_records
from dew.data.chat.roles import Role
from dew.data.chat.template import ChatTemplate
from dew.data.chat.turns import Rewritten, Spoken, spoken
from dew.data.text.cache import is_complete
from dew.data.text.tokenizer import Tokenizer
from dew.data.tokens.built import built
from dew.data.tokens.files import file_identity
from dew.data.tokens.source import Int64s
from dew.data.tokens.store import CorpusMeta, CorpusWriter

RECIPE = 3
"""Rises when the same conversations come to other files."""
SHEET = "chat.json"
AT_ONCE = 256
"""Texts that are encoded together."""
NO_TARGET = np.iinfo(np.int32).max
"""Stands for the place of a target that a text does not have."""
TOOLS = "tools"
"""The column of the functions the assistant may call."""


@dataclass
class ChatCounts:
    """What became of the records of a split.

    Attributes:
        conversations: records that were read.
        texts: they are rendered to.
        split: conversations taken apart because the template rewrites earlier turns.
    """

    conversations: int = 0
    texts: int = 0
    split: int = 0


@dataclass(frozen=True, kw_only=True)
class RecordSource(ABC):
    """Records and how they are rendered.

    Attributes:
        files: of the splits `train` and, where it has files of its own, `val`.
        tokenizer: makes the ids.
        val_fraction: part of the training records held out where `val` has no files, by their hash.
        template: a file in the place of the tokenizer's own template, or None.
        options: further names for the template.
        today: the day `strftime_now` gives, or None.
    """

    files: Mapping[str, list[Path]]
    tokenizer: Tokenizer
    val_fraction: float
    template: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    today: str | None = None

    @property
    @abstractmethod
    def columns(self) -> Mapping[str, str]:
        """What a record must have, by the field that names it; its hash is that of these."""

    @abstractmethod
    def rendered(self, record: Record, place: str) -> list[Spoken]:
        """The texts of one record.

        Raises:
            ValueError: one that holds something else, with its place.
        """

    @cached_property
    def _templates(self) -> dict[bool, ChatTemplate]:
        return {}

    def template_for(self, tools: object) -> ChatTemplate:
        """The template of conversations with these tools, or None.

        Raises:
            FileNotFoundError: the file that is named.
            ValueError: the tokenizer has none, or one that does not compile.
        """
        kind = tools is not None
        if kind not in self._templates:
            self._templates[kind] = chat_template(
                self.tokenizer,
                file=self.template,
                with_tools=kind,
                options=self.options,
                today=self.today,
                file_field="data.template",
            )
        return self._templates[kind]

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits there may be."""
        return ("train", "val") if "val" in self.files or self.val_fraction else ("train",)

    def key(self) -> str:
        """Identifies what is rendered."""
        skipped = ("files", "tokenizer", "template", "options")
        record = {
            "recipe": RECIPE,
            "kind": type(self).__name__,
            "tokenizer": self.tokenizer.fingerprint(),
            "files": {split: [file_identity(path) for path in paths] for split, paths in self.files.items()},
            "template": self._template_identity(),
            "options": dict(self.options),
            **{each.name: getattr(self, each.name) for each in fields(self) if each.name not in skipped},
        }
        return hashlib.blake2b(json.dumps(record, sort_keys=True).encode(), digest_size=16).hexdigest()

    def _template_identity(self) -> object:
        try:
            templates = [self.template_for(tools) for tools in (None, ())]
        except ValueError as error:
            return str(error)  # records that are plain text need none
        return [[each.source, each.special_tokens] for each in templates]

    def texts(self, split: str, counts: ChatCounts) -> Iterator[Spoken]:
        """The rendered records of `split`, in the order of the files; counts them.

        Raises:
            ValueError: a record without a column, or with something else in it, with its place.
        """
        for place, record in self._records(split):
            found = self.rendered(record, place)
            counts.conversations += 1
            counts.texts += len(found)
            counts.split += len(found) > 1
            yield from found

    def _records(self, split: str) -> Iterator[tuple[str, Record]]:
        from_train = "val" not in self.files
        for file in self.files["train" if from_train else split]:
            for place, record in read_records(file):
                for name, column in self.columns.items():
                    if column not in record:
                        raise ValueError(
                            f"{place} has no {column!r} (it has {', '.join(record)}); name the column as "
                            f"{name}"
                        )
                if not from_train or self._held_out(record, place) == (split == "val"):
                    yield place, record

    def said(self, record: Record, place: str) -> list[object]:
        """What tells a record from others, the same however it is stored: its columns without nulls.

        Raises:
            ValueError: a column of another form, with its place.
        """
        found = [(column, record[column]) for column in self.columns.values()]
        return [read_list(each, place, name) if isinstance(each, list) else each for name, each in found]

    def _held_out(self, record: Record, place: str) -> bool:
        if not self.val_fraction:
            return False
        told = self.said(record, place)
        text = json.dumps(told[0] if len(told) == 1 else told, sort_keys=True, default=str).encode()
        number = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())
        return number < self.val_fraction * 2**64


@dataclass(frozen=True, kw_only=True)
class ChatSource(RecordSource):
    """Conversations.

    Attributes:
        column: of the messages.
        rewritten: what is done where the template rewrites earlier turns.
    """

    column: str
    rewritten: Rewritten

    @property
    def columns(self) -> Mapping[str, str]:
        return {"data.column": self.column}

    def said(self, record: Record, place: str) -> list[object]:
        return [read_list(record[self.column], place, "messages")]

    def rendered(self, record: Record, place: str) -> list[Spoken]:
        talk = conversation(record[self.column], record.get(TOOLS), place)
        return spoken(self.template_for(talk.tools), talk, rewritten=self.rewritten)


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

    def first_targets(self, split: str) -> npt.NDArray[np.int32]:
        """[texts, roles], where in each text a role's first target stands; `NO_TARGET` where it has none."""
        found = np.fromfile(self.directory / f"{split}.targets", "<i4").astype(np.int32)
        return found.reshape(-1, len(Role))


def rendered(source: RecordSource) -> ChatStore:
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


def _build(draft: Path, source: RecordSource) -> None:
    tokenizer = source.tokenizer
    encoder = RoleEncoder(tokenizer, special_tokens(tokenizer).get("bos_token"))
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
            with (
                (draft / f"{split}.roles").open("wb") as roles,
                (draft / f"{split}.targets").open("wb") as firsts,
            ):
                for group in batched(source.texts(split, counts[split]), AT_ONCE):
                    for row in encoder.rows(group):
                        writer.append(split, row.ids.astype(np.uint32))
                        roles.write(row.roles.tobytes())
                        digest.update(row.roles.tobytes())
                        firsts.write(_first_targets(row.roles).tobytes())
                        bounds.append(bounds[-1] + len(row.ids))
            np.asarray(bounds, "<i8").tofile(draft / f"{split}.bounds")
        sheet = {
            "counts": {split: asdict(each) for split, each in counts.items()},
            "roles": digest.hexdigest(),
        }
        (draft / SHEET).write_text(json.dumps(sheet, indent=2) + "\n")
        writer.finish()


def _first_targets(roles: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
    """[roles], where the first target of each stands; the first id of a text is no target."""
    found = [np.flatnonzero(roles[1:] == role)[:1] + 1 for role in Role]
    return np.asarray([int(place[0]) if len(place) else NO_TARGET for place in found], "<i4")
