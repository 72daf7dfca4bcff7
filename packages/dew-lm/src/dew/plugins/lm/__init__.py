"""What dew-lm adds: the decoder, its objective and recipe, token datasets, tokenizers, generation."""

from __future__ import annotations

from collections.abc import Iterator

from dew.interop.decoders.names import MODEL_TYPES
from dew.plugins import Component, hookimpl

DEW_CONTRACT = 1
CONFIG = "dew.objectives.lm.config:LMRunConfig"


@hookimpl
def dew_components() -> Iterator[Component]:
    """The parts of dew-lm."""
    yield Component(
        "recipe",
        "lm",
        "dew.objectives.lm.recipe:train",
        "Train a language model on text: your files, or Python's own library sources.",
        config=CONFIG,
    )
    yield Component(
        "objective", "lm", "dew.objectives.lm.objective:LMObjective", "Next-token prediction.", config=CONFIG
    )
    yield Component(
        "model",
        "causal_transformer",
        "dew.nn.backbones.causal_transformer:CausalTransformer",
        "Decoder-only transformer with grouped-query attention and rotary positions.",
    )
    yield Component(
        "dataset",
        "text",
        "dew.data.text.config:TextFiles",
        "UTF-8 files or a folder of them, tokenized on first use; unset: Python's library sources.",
    )
    yield Component(
        "dataset",
        "token_windows",
        "dew.data.tokens.config:TokenWindows",
        "Windows over ids that were tokenized before.",
    )
    yield Component(
        "dataset",
        "packed_tokens",
        "dew.data.tokens.config:PackedTokens",
        "Whole documents of ids that were tokenized before, several to a row.",
    )
    yield Component(
        "dataset",
        "chat_messages",
        "dew.data.chat.config:ChatMessages",
        "Conversations, by the tokenizer's chat template, with a role for every token.",
    )
    yield Component(
        "dataset",
        "prompts",
        "dew.data.chat.answers_config:Prompts",
        "Prompts that a policy answers.",
    )
    yield Component(
        "dataset",
        "preference_pairs",
        "dew.data.chat.answers_config:PreferencePairs",
        "Two answers to a prompt, of which one is preferred.",
    )
    yield Component(
        "command",
        "tokenize",
        "dew.data.tokenize.command:main",
        "Write text as ids that a run reads: in parallel, and from where it stopped.",
    )
    yield Component("tokenizer", "byte", "dew.data.text:ByteTokenizer", "One id for each of the 256 bytes.")
    yield Component(
        "tokenizer", "hf", "dew.data.text:HFTokenizer", "A tokenizer.json of the tokenizers library."
    )
    yield Component("metric", "perplexity", "dew.objectives.lm:Perplexity", "Perplexity per token.")
    yield Component(
        "task",
        "lm",
        "dew.inference.text:TextGeneration",
        "Continue text.",
        config="dew.inference.text.options:TextOptions",
    )
    yield Component(
        "writer",
        "causal_transformer",
        "dew.interop.decoders:write_task",
        "A Hugging Face folder in the layout of the first family that computes the model.",
    )
    yield Component(
        "reader",
        "llama",
        "dew.interop.decoders:read_decoder",
        "Decoder folders in Hugging Face's layout, by their model_type.",
        config="dew.inference.text.options:TextOptions",
        aliases=tuple(name for name in MODEL_TYPES if name != "llama"),
    )
    yield Component(
        "adapter_writer",
        "causal_transformer",
        "dew.interop.decoders:write_adapter",
        "A PEFT folder for the same layouts.",
    )
