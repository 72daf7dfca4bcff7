"""Who wrote which character of a rendered conversation.

Two ways, and a check that both need. A template with `{% generation %}` tags says itself what the assistant
wrote. Any other is rendered over growing prefixes of the messages: what a message adds is its writer's, and
what the header that asks the assistant to speak adds (`add_generation_prompt`) is nobody's, since the
assistant never writes it. That is sound where a template leaves what it has rendered as it is. One that
rewrites earlier turns, as one that strips their reasoning once the user speaks again, is noticed, and refused
or taken apart: then every assistant turn is learned once, after the text that stands before it when it is
generated, and what the template makes of it later is context alone. An end of text that a template writes
behind the last message alone, as those of Phi do, is no rewriting: it belongs to whoever speaks last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from dew.data.chat.beginnings import shared_length
from dew.data.chat.conversation import Conversation
from dew.data.chat.roles import Role
from dew.data.chat.template import ChatTemplate, ChatTemplateError, Rendered

type Rewritten = Literal["refuse", "split"]


@dataclass(frozen=True)
class Spoken:
    """A text and whose each of its characters is.

    Attributes:
        text: as rendered.
        roles: [characters], values of `Role`.
    """

    text: str
    roles: npt.NDArray[np.uint8]


class RewrittenTurns(ChatTemplateError):
    """A template that renders earlier turns otherwise once later ones follow."""


def spoken(template: ChatTemplate, talk: Conversation, *, rewritten: Rewritten = "refuse") -> list[Spoken]:
    """The rendered conversation with its roles, or several where the template rewrites earlier turns.

    Args:
        template: renders it.
        talk: the messages.
        rewritten: what is done with a template that rewrites earlier turns of this conversation: `refuse` it,
            or `split` the conversation where it does.

    Raises:
        ChatTemplateError: the template refuses the messages.
        RewrittenTurns: `rewritten` is `refuse` and it does; or it marks what is generated, and rewrites it.
    """
    try:
        return _spoken(template, talk, rewritten)
    except ChatTemplateError as error:
        raise type(error)(f"{talk.place}: {error}") from error


def _spoken(template: ChatTemplate, talk: Conversation, rewritten: Rewritten) -> list[Spoken]:
    if not template.marks:
        return _grown(template, talk, rewritten)
    whole = template.render(talk.messages, tools=talk.tools)
    _require_kept(template, talk, whole)
    return [Spoken(whole.text, _marked_roles(template, talk, whole))]


def _marked_roles(template: ChatTemplate, talk: Conversation, whole: Rendered) -> npt.NDArray[np.uint8]:
    try:
        (grown,) = _grown(template, talk, "refuse")
        roles = np.where(grown.roles == Role.ASSISTANT, Role.TEMPLATE, grown.roles).astype(np.uint8)
    except ChatTemplateError:  # the marks alone say what counts; the other turns cannot be told apart
        roles = np.full(len(whole.text), Role.TEMPLATE, np.uint8)
    for start, stop in whole.generated:
        roles[start:stop] = Role.ASSISTANT
    return roles


def _require_kept(template: ChatTemplate, talk: Conversation, whole: Rendered) -> None:
    turns = [index for index, role in enumerate(talk.roles()) if role is Role.ASSISTANT]
    if len(whole.generated) < len(turns):
        raise ChatTemplateError(
            f"the chat template marks {len(whole.generated)} parts as generated and the assistant "
            f"speaks {len(turns)} times; put its generation tags around every turn of the assistant"
        )
    for number, index in enumerate(turns[:-1]):
        alone = template.render(talk.messages[: index + 1], tools=talk.tools)
        said, kept = _part(alone, number), _part(whole, number)
        if said != kept:
            raise RewrittenTurns(
                f"the chat template writes the assistant's turn {number + 1} as {said!r} when it "
                f"is generated and as {kept!r} later; take a data.template that keeps what was said"
            )


def _part(rendered: Rendered, number: int) -> str | None:
    if number >= len(rendered.generated):
        return None
    start, stop = rendered.generated[number]
    return rendered.text[start:stop]


class _Growing:
    """The text so far, and whose it is."""

    def __init__(self) -> None:
        self.text = ""
        self.parts: list[tuple[int, Role]] = []
        self.finished: list[Spoken] = []

    def add(self, text: str, role: Role) -> None:
        """Go on to `text`; what it adds is `role`'s."""
        self.parts.append((len(text) - len(self.text), role))
        self.text = text

    def close(self) -> None:
        """Set aside what there is where the assistant speaks in it, and begin anew."""
        if any(role is Role.ASSISTANT and size for size, role in self.parts):
            self.finished.append(self.spoken())
        self.text, self.parts = "", []

    def spoken(self) -> Spoken:
        """The text so far with its roles."""
        sizes, roles = zip(*self.parts, strict=True) if self.parts else ((), ())
        return Spoken(self.text, np.repeat(np.asarray(roles, np.uint8), sizes))


def _grown(template: ChatTemplate, talk: Conversation, rewritten: Rewritten) -> list[Spoken]:
    growing = _Growing()
    roles = talk.roles()
    bos, closing = template.special_tokens.get("bos_token", ""), _closing(template, talk)
    for index, role in enumerate(roles):
        last = index + 1 == len(roles)
        if not last and role is not Role.ASSISTANT and roles[index + 1] is role:
            continue  # one frame may hold several, as the results of parallel calls
        text = _prefix(template, talk, index + 1, needed=last or role is Role.ASSISTANT)
        if text is None:
            continue  # a template that needs more messages, as one that sets the system's into the user's
        text = text if last else text.removesuffix(closing)
        if role is Role.ASSISTANT:
            _add_assistant(template, talk, index, text, growing, rewritten)
            continue
        if not growing.text and bos and text.startswith(bos):
            growing.add(bos, Role.TEMPLATE)
        if text.startswith(growing.text):
            growing.add(text, role)
        else:
            _begin_anew(talk, index, growing, text, rewritten)
    if growing.finished and not any(role is Role.ASSISTANT for _, role in growing.parts):
        return growing.finished  # what is left is context without a turn to learn
    return [*growing.finished, growing.spoken()]


def _closing(template: ChatTemplate, talk: Conversation) -> str:
    """The end of text where the template writes it behind the last message alone, else nothing."""
    end = template.special_tokens.get("eos_token", "")
    text = _prefix(template, talk, len(talk.messages), needed=True)
    if not end or text is None or not text.endswith(end):
        return ""
    try:
        asked = template.render(talk.messages, tools=talk.tools, add_generation_prompt=True).text
    except ChatTemplateError:  # it asks for no answer to these messages, so nothing tells
        return ""
    return end if asked.startswith(text.removesuffix(end)) and not asked.startswith(text) else ""


def _prefix(template: ChatTemplate, talk: Conversation, count: int, *, needed: bool) -> str | None:
    try:
        return template.render(talk.messages[:count], tools=talk.tools).text
    except ChatTemplateError:
        if needed:
            raise
        return None


def _add_assistant(
    template: ChatTemplate,
    talk: Conversation,
    index: int,
    text: str,
    growing: _Growing,
    rewritten: Rewritten,
) -> None:
    asked = ""
    if index:
        asked = template.render(talk.messages[:index], tools=talk.tools, add_generation_prompt=True).text
    elif text.startswith(bos := template.special_tokens.get("bos_token", "")):
        asked = bos
    if not text.startswith(asked):
        raise RewrittenTurns(
            f"the chat template asks for message {index + 1} with {_end(asked)!r} and writes it "
            f"otherwise ({_end(text)!r}); take a data.template that begins an answer as it asks for it, "
            "or one "
            "with generation tags"
        )
    if asked.startswith(growing.text):
        growing.add(asked, Role.TEMPLATE)
    else:
        _begin_anew(talk, index, growing, asked, rewritten)
    growing.add(text, Role.ASSISTANT)


def _begin_anew(
    talk: Conversation, index: int, growing: _Growing, context: str, rewritten: Rewritten
) -> None:
    if rewritten == "refuse":
        at = shared_length(growing.text, context)
        raise RewrittenTurns(
            f"once message {index + 1} ({talk.messages[index]['role']}) follows, the chat template "
            f"writes {_end(context, at)!r} where it wrote {_end(growing.text, at)!r} before, as one that "
            "strips "
            "earlier reasoning does; set data.rewritten to split, or take a data.template that keeps it"
        )
    growing.close()
    growing.add(context, Role.TEMPLATE)


def _end(text: str, at: int | None = None, width: int = 24) -> str:
    return text[-width:] if at is None else text[at : at + width]
