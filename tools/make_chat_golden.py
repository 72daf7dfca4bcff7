"""Make the golden ids and assistant masks of conversations, as TRL prepares them for supervised fine-tuning.

    UV_PROJECT_ENVIRONMENT=.venv-oracle uv run --group oracle python tools/make_chat_golden.py

Reads the templates and conversations below packages/dew-lm/tests/golden/chat, writes two small tokenizers
beside them (byte-level with trimmed offsets and a post-processor that adds a beginning; SentencePiece-like
with byte fallback), and `trl.json`: for each tokenizer, template and conversation the ids and the mask of
TRL's own tokenizing function, or the refusal of the template. TRL gets the byte-level tokenizer with whole
offsets: where a post-processor trims them, transformers finds no token at a leading space and drops the
    rest of the
mask.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
import transformers
import trl
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from trl.data_utils import _tokenize

FOLDER = Path(__file__).resolve().parent.parent / "packages" / "dew-lm" / "tests" / "golden" / "chat"
SPECIAL = [
    *("<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "<|start|>", "<|end|>", "<|eot|>"),
    *("<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]", "<think>", "</think>"),
]
TEXT = (
    "The model answers the user's question. Hello, what is the colour of the assistant, and another one? " * 3
)
CONFIG = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
OPTIONS = {"reasoning": {"keep_reasoning": True}}


def byte_level() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=340, initial_alphabet=alphabet, special_tokens=SPECIAL)
    made.train_from_iterator([TEXT, "\n\n\n\n system user assistant"], trainer)
    made.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)]),
        ]
    )
    return made


def sentence_pieces() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=380, special_tokens=[*SPECIAL, *pieces])
    made.train_from_iterator([TEXT.replace(" ", "▁")], trainer)
    record = json.loads(made.to_str())
    # The byte pieces are part of the vocabulary, not tokens of their own.
    record["added_tokens"] = [token for token in record["added_tokens"] if token["content"] in SPECIAL]
    return tokenizers.Tokenizer.from_str(json.dumps(record))


def golden(tokenizer: Any, template: str, talk: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    try:
        found = _tokenize(
            tokenizer,
            talk["messages"],
            tools=talk.get("tools"),
            chat_template=template,
            return_assistant_tokens_mask=True,
            **options,
        )
    except Exception as error:
        return {"refused": str(error)}
    return {"ids": found["input_ids"], "mask": found["assistant_masks"]}


def tokenizers_by_name() -> dict[str, tokenizers.Tokenizer]:
    """The two tokenizers, as they are written."""
    return {"byte_level": byte_level(), "sentence_pieces": sentence_pieces()}


def rows(name: str, made: tokenizers.Tokenizer) -> dict[str, Any]:
    """What TRL makes of every conversation with every template."""
    talks = json.loads((FOLDER / "conversations.json").read_text())
    if name == "byte_level":
        made.post_processor = processors.ByteLevel(trim_offsets=False)
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=made, **CONFIG)
    return {
        file.stem: {
            talk: golden(wrapped, file.read_text(), said, OPTIONS.get(file.stem, {}))
            for talk, said in talks.items()
        }
        for file in sorted(FOLDER.glob("*.jinja"))
    }


def main() -> None:
    found: dict[str, Any] = {}
    for name, made in tokenizers_by_name().items():
        place = FOLDER / name
        place.mkdir(exist_ok=True)
        (place / "tokenizer.json").write_text(json.dumps(json.loads(made.to_str()), ensure_ascii=False))
        (place / "tokenizer_config.json").write_text(json.dumps(CONFIG) + "\n")
        found[name] = rows(name, made)
    versions = {each.__name__: each.__version__ for each in (trl, transformers, tokenizers)}
    record = {"command": "python tools/make_chat_golden.py", "versions": versions, "rows": found}
    (FOLDER / "trl.json").write_text(json.dumps(record, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
