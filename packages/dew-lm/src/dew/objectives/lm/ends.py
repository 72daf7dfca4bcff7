"""Where a run's responses end: as the model it starts from, its tokenizer and its chat template say."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dew.data.chat.choose import chat_template
from dew.data.chat.config import ChatMessages
from dew.data.chat.template import ChatTemplate, ChatTemplateError
from dew.data.text.tokenizer import HFTokenizer, Tokenizer
from dew.sampling.text.config import Sampling

ANSWER = "Yes"
PROBE = ({"role": "user", "content": "Is it?"}, {"role": "assistant", "content": ANSWER})


def with_ends(
    sampling: Sampling,
    tokenizer: Tokenizer,
    *,
    vocab_size: int,
    controls: Mapping[str, Any],
    chats: Iterable[ChatMessages],
) -> Sampling:
    """`sampling` with the ids that end a row, where it names none.

    They are the source's `eos_token_id`, else the tokenizer's end of a document; and for conversations the
    token that ends the assistant's turn. Rows are padded with the source's `pad_token_id`, else the
    tokenizer's, else the first of them.

    Args:
        sampling: of the run; its own end ids are kept.
        tokenizer: of the run.
        vocab_size: of the model; it never draws an id beyond.
        controls: of the published model that the run starts from; empty for none.
        chats: the conversations that the run trains on.
    """
    if sampling.eos_ids:
        return sampling
    said = controls.get("eos_token_id", tokenizer.eos_id)
    turns = [turn_end(tokenizer, template) for template in _templates(tokenizer, chats)]
    ids = [*(said if isinstance(said, list) else [said]), *turns]
    ends = tuple(dict.fromkeys(each for each in ids if each is not None and 0 <= each < vocab_size))
    if not ends:
        return sampling
    pads = (controls.get("pad_token_id"), tokenizer.pad_id, ends[0])
    pad = next(each for each in pads if each is not None and 0 <= each < vocab_size)
    return dataclasses.replace(sampling, eos_id=ends, pad_id=sampling.pad_id or pad)


def turn_end(tokenizer: Tokenizer, template: ChatTemplate) -> int | None:
    """The token that `template` writes behind what the assistant says, or None where it writes text alone.

    None also for a template that refuses a conversation of one question and its answer.
    """
    if not isinstance(tokenizer, HFTokenizer):
        return None
    try:
        text = template.render(PROBE).text
    except ChatTemplateError:
        return None
    marks = set(tokenizer.backend.get_added_tokens_decoder())
    behind = tokenizer.encode(text.rpartition(ANSWER)[2])
    return next((each for each in behind if each in marks or each == tokenizer.eos_id), None)


def _templates(tokenizer: Tokenizer, chats: Iterable[ChatMessages]) -> Iterable[ChatTemplate]:
    # Bytes have no token that a template could end a turn with.
    for data in chats if isinstance(tokenizer, HFTokenizer) else ():
        # A run that is opened later may lack the file; its record has the ids already.
        if data.template is None or Path(data.template).expanduser().is_file():
            yield chat_template(
                tokenizer, file=data.template, options=data.template_options, today=data.today
            )
