"""Keep the memory of finished steps in the process, so that the next step does not fault it in again.

A compiled CPU program asks for all its temporaries in one piece and frees it at the end. The C library gives
pieces of that size straight back to the system; the next step then takes a page fault for every 4 KiB it
touches, over 100,000 in a small decoder's training step and up to a third of its time.
"""

from __future__ import annotations

import ctypes

# Parameters of mallopt(3), from malloc.h of the GNU C library.
M_TRIM_THRESHOLD = -1
M_TOP_PAD = -2
M_MMAP_MAX = -4
M_ARENA_MAX = -8

SETTINGS = {
    M_MMAP_MAX: 0,  # no piece of its own for a large request
    M_ARENA_MAX: 1,  # another thread's arena holds at most 64 MiB and would map larger requests regardless
    M_TRIM_THRESHOLD: 2**31 - 1,  # what is freed at the heap's end stays
    M_TOP_PAD: 64 * 2**20,  # the heap grows in steps of 64 MiB
}


def keep_freed_memory() -> bool:
    """Tell the C library to keep what is freed for the next request. Call it before JAX opens a backend.

    The process then holds its peak of memory until it ends.

    Returns:
        Whether the library took the settings; False where it is not the GNU C library.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, TypeError):
        return False
    mallopt.argtypes = [ctypes.c_int, ctypes.c_int]
    mallopt.restype = ctypes.c_int
    return all(mallopt(parameter, value) == 1 for parameter, value in SETTINGS.items())
