"""What mixes tokens in place of plain attention, as plain records. Importing it imports no JAX."""

from __future__ import annotations

from dataclasses import dataclass

from dew.nn.ranges import check_positive


@dataclass(frozen=True, kw_only=True)
class MLA:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1), and its lightning indexer.

    With x a token, a head's query is `[q_nope, turn(q_rope)]` from `norm(x W_qa) W_qb` (or from `x W_q`), its
    key `[k_nope, turn(k_rope)]` and its value v, where `[k_nope, v]` come from the latent vector
    `c = norm(x W_kva)` and all heads share the one `k_rope` of `x W_kva`. Generation keeps c and the turned
    `k_rope` of a token: `kv_lora_rank + qk_rope_head_dim` numbers a layer.

    The indexer (DeepSeek-V3.2, arXiv 2512.02556, equation 1) scores every earlier token s for a query t,
    `I_ts = sum over j of w_tj relu(q_tj k_s)`. With `index_topk` a query attends to the keys of largest score
    alone; without, attention is dense, and the indexer can be trained beside it. Published code turns index
    queries and keys by a Hadamard matrix, which changes no product, before it rounds them to 8 bits; here
    they are computed as they are.

    Attributes:
        kv_lora_rank: width of c.
        qk_nope_head_dim: part of a head's query and key that does not turn.
        qk_rope_head_dim: part that turns.
        v_head_dim: width of a head's value.
        q_lora_rank: width of the queries' latent vector; None projects queries from the token.
        norm_eps: of the norms of both latent vectors.
        index_n_heads: heads of the indexer; None has no indexer.
        index_head_dim: their width, of which the first `qk_rope_head_dim` coordinates turn, as halves.
        index_topk: keys that a query attends to; None for all.

    Raises:
        TypeError: a `norm_eps` that is no number.
        ValueError: a size below 1, a `norm_eps` that is not finite and above 0, an odd turning width, or
            fields of the indexer that do not fit each other.
    """

    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None
    norm_eps: float = 1e-6
    index_n_heads: int | None = None
    index_head_dim: int | None = None
    index_topk: int | None = None

    def __post_init__(self) -> None:
        sizes = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "q_lora_rank")
        for name in (*sizes, "index_n_heads", "index_head_dim", "index_topk"):
            size = getattr(self, name)
            if size is not None and size < 1:
                raise ValueError(f"mixer {name}={size} must be at least 1")
        check_positive("mixer norm_eps", self.norm_eps)
        if self.qk_rope_head_dim % 2:
            raise ValueError(
                f"mixer qk_rope_head_dim={self.qk_rope_head_dim} must be even: rotary positions turn pairs "
                "of coordinates"
            )
        self._check_indexer()

    def _check_indexer(self) -> None:
        if (self.index_n_heads is None) != (self.index_head_dim is None):
            raise ValueError(
                f"mixer index_n_heads={self.index_n_heads} and index_head_dim={self.index_head_dim} go "
                "together; set both for an indexer, or neither"
            )
        if self.index_head_dim is None:
            if self.index_topk is not None:
                raise ValueError(
                    f"mixer index_topk={self.index_topk} is chosen by an indexer; set index_n_heads and "
                    "index_head_dim, or leave it unset"
                )
            return
        if self.q_lora_rank is None:
            raise ValueError("mixer index_n_heads needs q_lora_rank: index queries come from that vector")
        if self.index_head_dim < self.qk_rope_head_dim:
            raise ValueError(
                f"mixer index_head_dim={self.index_head_dim} must be at least "
                f"qk_rope_head_dim={self.qk_rope_head_dim}, the part of it that turns"
            )

    @property
    def head_width(self) -> int:
        """The width of a head's query and key."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def cached_width(self) -> int:
        """The numbers that generation keeps of a token in a layer."""
        index = 0 if self.index_topk is None else self.index_head_dim or 0
        return self.kv_lora_rank + self.qk_rope_head_dim + index

    def weights(self, hidden_size: int, num_heads: int) -> int:
        """The weights of matrix products that a token meets in a layer."""
        queries = num_heads * self.head_width
        rank = self.q_lora_rank
        query = hidden_size * queries if rank is None else rank * (hidden_size + queries)
        key = hidden_size * (self.kv_lora_rank + self.qk_rope_head_dim)
        expansion = self.kv_lora_rank * num_heads * (self.qk_nope_head_dim + self.v_head_dim)
        total = query + key + expansion + num_heads * self.v_head_dim * hidden_size
        if self.index_topk is None or rank is None:
            return total
        heads, width = self.index_n_heads or 0, self.index_head_dim or 0
        return total + rank * heads * width + hidden_size * (width + heads)

    def pair_products(self, num_heads: int) -> int:
        """The multiply-adds of a query and a key that it attends to."""
        return num_heads * (self.head_width + self.v_head_dim)

    @property
    def index_products(self) -> int:
        """The multiply-adds of a query and a key that an indexer scores for it."""
        return 0 if self.index_topk is None else (self.index_n_heads or 0) * (self.index_head_dim or 0)
