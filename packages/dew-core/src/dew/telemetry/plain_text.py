"""Text that a model wrote, made harmless for a terminal."""

from __future__ import annotations


def visible(text: str) -> str:
    """`text` with what steers a terminal or hides (controls, escapes, direction marks) written out.

    Line ends stay; a tab is four spaces.
    """
    spaced = text.replace("\r\n", "\n").replace("\t", "    ")
    return "".join(
        letter if letter == "\n" or letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in spaced
    )


def excerpt(text: str, *, lines: int, columns: int) -> list[str]:
    """At most `lines` lines of `text`, each cut at `columns`; what is left out shows as an ellipsis."""
    found = visible(text).rstrip().split("\n")
    kept = [line if len(line) <= columns else line[: max(0, columns - 1)] + "…" for line in found[:lines]]
    return kept if len(found) <= lines else [*kept, "…"]
