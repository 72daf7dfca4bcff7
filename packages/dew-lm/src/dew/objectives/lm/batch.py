"""The fields of a token batch, each [B, seq_len + 1]."""

from __future__ import annotations

TEXT_KEY = "text"
"""The ids, int32. Token i predicts token i + 1."""

SEGMENTS_KEY = "text_segment_ids"
"""The document of each token in a packed row, from 1, and 0 for padding; without it a row is one document."""

POSITIONS_KEY = "text_positions"
"""The position of each token in its document; without it positions count from the row's start."""

ROLES_KEY = "text_roles"
"""Who wrote each token of a conversation, values of `dew.data.chat.Role`."""
