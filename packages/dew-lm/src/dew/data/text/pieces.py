"""Cut long text into pieces that a tokenizer encodes one by one to the ids it gives the whole.

The rule: a cut falls either after a lone line end that stands between a character that is no space and a
letter or digit, or before a lone space that stands between two characters that are letters or digits.
Tokenizers that split text into words before they merge (the byte-level and Metaspace families) have a word
border in at least one of these places. Which of the two holds for a tokenizer is tried on the text itself;
where neither does, a document is encoded whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

PIECE = 1 << 14
"""Characters of a piece, about."""
LONGEST = 1 << 23
"""Characters of the longest piece; a text with no place to cut in so many is refused."""
TRIED = 20_000
"""Characters of the text that a kind of cut is tried on, after `PROSE`."""
PROSE = """\
When the 3 engineers met (in 1998, they say), "nobody" had written more than 1200 lines; by 2 a.m. it ran.
def area(width: float, height=2.5):
    # it isn't the user's own
    return width * height
Ünïcödé wörds and größere Zahlen: 10 000 km.
Longer plain sentences follow here so that cuts of both kinds exist
and every kind is tried more than once before it is trusted with a corpus of many millions of words
"""

type Cut = Callable[[str, int, int], int]


def after_line(text: str, low: int, high: int) -> int:
    """The last cut after a line end in `text[low:high]`, or -1."""
    at = high
    while (at := text.rfind("\n", low, at)) > 0:
        if at + 1 < len(text) and not text[at - 1].isspace() and text[at + 1].isalnum():
            return at + 1
    return -1


def before_space(text: str, low: int, high: int) -> int:
    """The last cut before a space in `text[low:high]`, or -1."""
    at = high
    while (at := text.rfind(" ", low, at)) > 0:
        if at + 1 < len(text) and text[at - 1].isalnum() and text[at + 1].isalnum():
            return at
    return -1


def safe_cuts(encode: Callable[[str], list[int]], sample: str) -> tuple[Cut, ...]:
    """The kinds of cut that leave the ids of some prose and of the head of `sample` as they are."""
    sample = PROSE + sample[:TRIED]
    whole = encode(sample)
    found: list[Cut] = []
    for cut in (after_line, before_space):
        pieces = list(_cut_small(sample, cut))
        if len(pieces) > 1 and [each for piece in pieces for each in encode(piece)] == whole:
            found.append(cut)
    return tuple(found)


def pieces(texts: Iterable[str], cuts: tuple[Cut, ...]) -> Iterator[str]:
    """Cut the concatenation of `texts` into pieces of about `PIECE` characters at places `cuts` finds.

    Raises:
        ValueError: `LONGEST` characters without such a place.
    """
    pending = ""
    for text in texts:
        pending += text
        start = 0
        while len(pending) - start > 2 * PIECE:
            at = next_cut(pending, start, cuts)
            if at < 0:
                break
            yield pending[start:at]
            start = at
        pending = pending[start:]
        if len(pending) > LONGEST:
            raise ValueError(
                f"{LONGEST} characters in a row give this tokenizer no place to cut the text, as from "
                f"{pending[:40]!r}; "
                "split the file into documents, break its lines, or use the byte tokenizer"
            )
    if pending:
        yield pending


def next_cut(text: str, start: int, cuts: tuple[Cut, ...]) -> int:
    """A cut after `start`, in steps of a piece from the near end of `text`, or -1."""
    low = start
    while low < len(text):
        high = min(low + PIECE, len(text) - 1)
        for cut in cuts:
            at = cut(text, low, high)
            if at > start:
                return at
        low += PIECE
    return -1


def _cut_small(text: str, cut: Cut, size: int = 64) -> Iterator[str]:
    start = 0
    for high in range(size, len(text), size):
        at = cut(text, start, high)
        if at > start:
            yield text[start:at]
            start = at
    yield text[start:]
