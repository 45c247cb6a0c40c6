"""Build the stream of training windows of one worker."""

from __future__ import annotations

from collections.abc import Callable

from omegaconf import DictConfig

from outerloop.exchange_protocols import first_commit, landed_commit, replicated, shares_rank
from outerloop.inner.data.assigned_stream import AssignedStream, training_text
from outerloop.inner.data.assignment import BEFORE_FIRST, hash_without_chain, late_joiner_seed
from outerloop.inner.data.corpus import Corpus, Stream
from outerloop.inner.data.partition import RankStream
from outerloop.inner.hooks import TrainerHooks
from outerloop.protocols import Exchange
from outerloop.replica.rank_group import RankGroup
from outerloop.swarm.validation import id_of


def make_stream(
    config: DictConfig,
    corpus: Corpus,
    exchange: Exchange,
    ranks: RankGroup,
    outer: TrainerHooks,
) -> Stream:
    """Return the stream of this rank's training windows. `exchange` must have joined."""
    inner = config.inner
    if config.assignment == "by_round":
        stream: Stream = assigned_stream(config, corpus, exchange, ranks, outer)
    else:
        seed = order_seed(config, exchange)
        stream = corpus.stream(
            rank=exchange.rank, size=exchange.size, batch=inner.batch, seq_len=inner.seq_len, seed=seed
        )
    return RankStream(stream, rank=ranks.rank, ranks=ranks.size) if ranks.size > 1 else stream


def assigned_stream(
    config: DictConfig,
    corpus: Corpus,
    exchange: Exchange,
    ranks: RankGroup,
    outer: TrainerHooks,
) -> AssignedStream:
    """Return the stream of windows assigned by round. The leader of an island sends the hashes to its other ranks."""
    has_chain = replicated(exchange) is not None

    def landed() -> bytes:
        if has_chain:
            return landed_commit(exchange)
        return b"" if outer.last_landed is None else hash_without_chain(config.seed, outer.last_landed)

    def first() -> bytes:
        return first_commit(exchange) if has_chain else hash_without_chain(config.seed, BEFORE_FIRST)

    def from_leader(read: Callable[[], bytes]) -> Callable[[], bytes]:
        return lambda: ranks.broadcast(read() if ranks.is_leader else b"")

    return AssignedStream(
        training_text(corpus, seq_len=config.inner.seq_len),
        batch=config.inner.batch,
        seq_len=config.inner.seq_len,
        peer=id_of(exchange.peer) if has_chain else f"{exchange.rank}",
        landed=from_leader(landed),
        first=from_leader(first),
    )


def order_seed(config: DictConfig, exchange: Exchange) -> int:
    """Return the seed of the order in which this worker reads its part of the text.

    It is the run's seed, unless a late joiner shares its part with a member. A member that returns keeps its part and
    its order, so that it continues exactly where its checkpoint was.
    """
    return late_joiner_seed(exchange.peer) if shares_rank(exchange) else config.seed


def check_training_text(config: DictConfig, corpus: Corpus) -> None:
    """Check that the text can be divided among the peers, and that it suffices. Raises UserError if not."""
    if config.assignment == "by_round":
        training_text(corpus, seq_len=config.inner.seq_len)
    else:
        peers = config.exchange.get("peers", config.workers)
        corpus.stream(rank=peers - 1, size=peers, batch=1, seq_len=config.inner.seq_len, seed=config.seed)
