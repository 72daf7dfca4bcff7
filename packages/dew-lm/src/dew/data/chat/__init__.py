"""Conversations as training data: the tokenizer's own template, and a role for every token."""

from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {
        "ChatMessages": "dew.data.chat.config:dew-lm",
        "ChatTemplate": "dew.data.chat.template:dew-lm",
        "ChatTemplateError": "dew.data.chat.template:dew-lm",
        "Conversation": "dew.data.chat.conversation:dew-lm",
        "PreferencePairs": "dew.data.chat.answers_config:dew-lm",
        "Prompts": "dew.data.chat.answers_config:dew-lm",
        "RewrittenTurns": "dew.data.chat.turns:dew-lm",
        "Role": "dew.data.chat.roles:dew-lm",
        "chat_template": "dew.data.chat.choose:dew-lm",
    },
)

if TYPE_CHECKING:
    from dew.data.chat.answers_config import PreferencePairs as PreferencePairs
    from dew.data.chat.answers_config import Prompts as Prompts
    from dew.data.chat.choose import chat_template as chat_template
    from dew.data.chat.config import ChatMessages as ChatMessages
    from dew.data.chat.conversation import Conversation as Conversation
    from dew.data.chat.roles import Role as Role
    from dew.data.chat.template import ChatTemplate as ChatTemplate
    from dew.data.chat.template import ChatTemplateError as ChatTemplateError
    from dew.data.chat.turns import RewrittenTurns as RewrittenTurns
