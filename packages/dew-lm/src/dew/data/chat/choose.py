"""Which template a run renders with: a file it names, or the tokenizer's own."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from dew.data.chat.template import FUNCTIONS, PASSED, ChatTemplate
from dew.data.text.tokenizer import HFTokenizer, Tokenizer

FILE = "chat_template.jinja"
CONFIG = "tokenizer_config.json"


def chat_template(
    tokenizer: Tokenizer,
    *,
    file: str | None = None,
    with_tools: bool = False,
    options: Mapping[str, Any] | None = None,
    today: str | None = None,
    file_field: str | None = None,
) -> ChatTemplate:
    """The template that a run renders with.

    A tokenizer's folder holds it as `chat_template.jinja`, or in `tokenizer_config.json` as one text or as
    several named ones: then `tool_use` is taken for conversations with tools where there is one, else
    `default`.

    Args:
        tokenizer: the run's.
        file: a template file that takes the place of the tokenizer's own.
        with_tools: whether the conversations have tools.
        options: further names for the template.
        today: the day `strftime_now` gives, as 2026-01-31.
        file_field: what the user writes to name `file`, for messages.

    Raises:
        FileNotFoundError: `file` is not there.
        ValueError: the tokenizer has no template, `today` is no day, or an option that no template of the
            tokenizer reads, or of a name that it is given anyway.
        ChatTemplateError: the template does not compile.
    """
    day = None if today is None else _day(today)
    tokens = special_tokens(tokenizer)

    def made(tools: bool) -> ChatTemplate:
        source = (
            _own(tokenizer, tools, file_field) if file is None else Path(file).expanduser().read_text("utf-8")
        )
        return ChatTemplate(source, tokens, options=options, today=day)

    chosen = made(with_tools)
    if options:
        _require_read(options, chosen.names | made(not with_tools).names)
    return chosen


def special_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    """The tokens that a tokenizer's configuration names: `bos_token`, `eos_token` and others."""
    found: dict[str, str] = {}
    for name, value in _config(tokenizer).items():
        content = cast("Mapping[str, Any]", value).get("content") if isinstance(value, Mapping) else value
        if name.endswith("_token") and isinstance(content, str):
            found[name] = content
    return found


def _require_read(options: Mapping[str, Any], names: frozenset[str]) -> None:
    for name in options:
        if name not in names:
            own = {each for each in names if each in (*PASSED, *FUNCTIONS) or each.endswith("_token")}
            read = ", ".join(sorted(names - own)) or "no name beside the conversation"
            raise ValueError(
                f"data.template_options: the chat template never reads {name!r}; it reads {read}; take it out"
            )


def _own(tokenizer: Tokenizer, with_tools: bool, file_field: str | None) -> str:
    if isinstance(tokenizer, HFTokenizer):
        file = tokenizer.folder / FILE
        if file.is_file():
            return file.read_text(encoding="utf-8")
        said = _config(tokenizer).get("chat_template")
        if isinstance(said, list):
            said = _named(cast("list[Any]", said), with_tools)
        if isinstance(said, str):
            return said
    other = "" if file_field is None else f", or a template file as {file_field}"
    raise ValueError(
        f"tokenizer {tokenizer.name!r} has no chat template; put one beside its tokenizer.json as {FILE}, or "
        f"name a folder with {FILE} or a {CONFIG} that holds one{other}"
    )


def _named(templates: list[Any], with_tools: bool) -> str | None:
    by_name = {str(each["name"]): str(each["template"]) for each in templates}
    if with_tools and "tool_use" in by_name:
        return by_name["tool_use"]
    return by_name.get("default")


def _config(tokenizer: Tokenizer) -> dict[str, Any]:
    if not isinstance(tokenizer, HFTokenizer):
        return {}
    path = tokenizer.folder / CONFIG
    return dict(json.loads(path.read_bytes())) if path.is_file() else {}


def _day(text: str) -> datetime.date:
    try:
        return datetime.date.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"data.today={text!r} must be a day, as in 2026-01-31") from error
