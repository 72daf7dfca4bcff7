"""Which template a run renders with: a file it names, or the tokenizer's own."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from dew.data.chat.template import ChatTemplate
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

    Raises:
        FileNotFoundError: `file` is not there.
        ValueError: the tokenizer has no template, or `today` is no day.
        ChatTemplateError: the template does not compile.
    """
    day = None if today is None else _day(today)
    if file is not None:
        source = Path(file).expanduser().read_text(encoding="utf-8")
    else:
        source = _own(tokenizer, with_tools)
    return ChatTemplate(source, special_tokens(tokenizer), options=options, today=day)


def special_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    """The tokens that a tokenizer's configuration names: `bos_token`, `eos_token` and others."""
    found: dict[str, str] = {}
    for name, value in _config(tokenizer).items():
        content = cast("Mapping[str, Any]", value).get("content") if isinstance(value, Mapping) else value
        if name.endswith("_token") and isinstance(content, str):
            found[name] = content
    return found


def _own(tokenizer: Tokenizer, with_tools: bool) -> str:
    if isinstance(tokenizer, HFTokenizer):
        file = tokenizer.folder / FILE
        if file.is_file():
            return file.read_text(encoding="utf-8")
        said = _config(tokenizer).get("chat_template")
        if isinstance(said, list):
            said = _named(cast("list[Any]", said), with_tools)
        if isinstance(said, str):
            return said
    raise ValueError(
        f"tokenizer {tokenizer.name!r} has no chat template; name a folder with {FILE} or a {CONFIG} that "
        "holds one, or a template file as data.template"
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
