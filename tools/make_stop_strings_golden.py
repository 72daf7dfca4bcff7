"""Where transformers' StopStringCriteria ends random rows of tokens, over four kinds of vocabulary.

    uv run --group oracle python tools/make_stop_strings_golden.py

writes packages/dew-lm/tests/golden/stop_strings.json: for each vocabulary and string one bit for each row.
Rows and vocabularies are made here, from fixed pieces and a seed.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

GOLDEN = Path(__file__).resolve().parent.parent / "packages/dew-lm/tests/golden/stop_strings.json"
ROWS, WIDTH = 600, 7
LETTERS = [*"abcdefoprstx"]
WORDS = ["st", "sto", "op", "stop", "pped", "las", "topper", "xstopx", "er", "tops", "pst"]
STRINGS = {
    "byte_level": ["stop", " stop", "p", "é", "st🙂o", "\n\n", "ppedé"],
    "byte_fallback": ["stop", " stop", "p", "é", "st🙂o", "opst", "\n\n"],
    "metaspace": ["stop", " stop", "p", "op st", "opst", " "],
    "word_piece": ["stop", " stop", "p", "op st", "opst"],
}
SPELLED = {
    "byte_level": [
        ["st", "ðŁ", "ĻĤo"],
        ["s", "tðŁ", "ĻĤ", "o"],
        ["sÃ", "©s"],
        ["ppedÃ", "©s"],
        ["ĊĊ"],
        ["Ċ", "Ċ"],
    ],
    "byte_fallback": [
        ["st", "<0xF0>", "<0x9F>", "<0x99>", "<0x82>", "op"],
        ["<0xC3>", "<0xA9>"],
        ["sté"],
        ["<0x0A>", "<0x0A>"],
    ],
    "metaspace": [["op▁", "st"], ["op", "▁stop"], ["▁", "sto", "pped"]],
    "word_piece": [["op", "st"], ["##op", "stop"], ["st", "##op"]],
}
"""Ends that some rows are given."""


def vocabulary(pieces: list[str]) -> dict[str, int]:
    return {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}


def byte_level() -> tokenizers.Tokenizer:
    """GPT-2's kind: every byte is a token, spelled as one character."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    split = ["sÃ", "©s", "ðŁ", "ĻĤ", "tðŁ", "ĻĤo", "ppedÃ", "Ċ", "ĊĊ", "Ġst", "Ġstop", "Ġ"]
    made = tokenizers.Tokenizer(models.BPE(vocabulary([*alphabet, *WORDS, *split]), []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<|endoftext|>"])
    return made


def byte_fallback() -> tokenizers.Tokenizer:
    """Llama's kind: pieces of text, and a token for each byte that no piece spells."""
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = ["<unk>", *fallback, "▁", *LETTERS, *WORDS, "▁st", "▁stop", "é", "sté", "▁o"]
    model = models.BPE(vocabulary(pieces), [], unk_token="<unk>", byte_fallback=True)
    made = tokenizers.Tokenizer(model)
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    return made


def metaspace() -> tokenizers.Tokenizer:
    """SentencePiece's kind without bytes: words begin with a mark, and a decoder drops the first one."""
    pieces = ["<unk>", "▁", *LETTERS, *WORDS, "▁st", "▁stop", "▁abc", "▁o", "op▁"]
    made = tokenizers.Tokenizer(models.Unigram([(piece, -1.0) for piece in dict.fromkeys(pieces)], unk_id=0))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    return made


def word_piece() -> tokenizers.Tokenizer:
    """BERT's kind: pieces inside a word are marked, and a decoder puts spaces before the others."""
    inner = [f"##{piece}" for piece in [*LETTERS, *WORDS]]
    model = models.WordPiece(vocabulary(["[UNK]", *LETTERS, *WORDS, *inner]), unk_token="[UNK]")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    return made


KINDS = {
    "byte_level": byte_level,
    "byte_fallback": byte_fallback,
    "metaspace": metaspace,
    "word_piece": word_piece,
}


def rows(kind: str, tokenizer: tokenizers.Tokenizer) -> np.ndarray:
    """`[ROWS, WIDTH]` ids, mostly of tokens that can take part."""
    draw = np.random.default_rng(zlib.crc32(kind.encode()))
    known = tokenizer.get_vocab()
    likely = sorted(known[token] for token in known if any(letter in token for letter in "stop"))
    some = np.asarray(likely)[draw.integers(0, len(likely), (ROWS, WIDTH))]
    anything = draw.integers(0, len(known), (ROWS, WIDTH))
    ids = np.where(draw.random((ROWS, WIDTH)) < 0.9, some, anything).astype(np.int32)
    for row in range(0, ROWS, 4):
        end = SPELLED[kind][draw.integers(0, len(SPELLED[kind]))]
        ids[row, WIDTH - len(end) :] = [known[token] for token in end]
    return ids


def reference(tokenizer: tokenizers.Tokenizer, strings: list[str], ids: np.ndarray) -> np.ndarray:
    """`[ROWS]` booleans of transformers."""
    import torch
    from transformers import PreTrainedTokenizerFast
    from transformers.generation.stopping_criteria import StopStringCriteria

    wrapped: Any = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    return StopStringCriteria(wrapped, strings)(torch.from_numpy(ids).long(), None).numpy()


def golden() -> dict[str, dict[str, str]]:
    """Vocabulary -> string -> the rows it ends, as hexadecimal bits."""
    found: dict[str, dict[str, str]] = {}
    for kind, make in KINDS.items():
        tokenizer = make()
        ids = rows(kind, tokenizer)
        ended = {string: reference(tokenizer, [string], ids) for string in STRINGS[kind]}
        found[kind] = {string: np.packbits(bits).tobytes().hex() for string, bits in ended.items()}
    return found


def main() -> None:
    import transformers

    note = {
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
        "command": "uv run --group oracle python tools/make_stop_strings_golden.py",
    }
    GOLDEN.write_text(json.dumps({"note": note, "ended": golden()}, indent=1, ensure_ascii=True) + "\n")


if __name__ == "__main__":
    main()
