"""Choose the stream of training windows of one worker."""

from __future__ import annotations

from collections.abc import Callable

from outerloop.exchange_protocols import first_commit, landed_commit, replicated, shares_rank
from outerloop.inner.data.assigned_stream import AssignedStream, training_text
from outerloop.inner.data.assignment import BEFORE_FIRST, hash_without_chain, late_joiner_seed
from outerloop.inner.data.corpus import Corpus, SequentialCorpus, Stream
from outerloop.inner.data.fingerprint import with_fingerprint
from outerloop.inner.data.partition import RankStream
from outerloop.inner.hooks import TrainerHooks
from outerloop.protocols import Exchange
from outerloop.replica.rank_group import RankGroup
from outerloop.swarm.validation import id_of


def make_stream(
    corpus: Corpus,
    exchange: Exchange,
    ranks: RankGroup,
    outer: TrainerHooks,
    *,
    assignment: str,
    seed: int,
    batch: int,
    seq_len: int,
) -> Stream:
    """Return the stream of this rank's training windows. `exchange` must have joined.

    Args:
        outer: the outer loop, which knows the last landed round.
        assignment: "by_worker" or "by_round", as in train.yaml.
        seed: the run's seed.
        batch: sequences per batch of the whole island.
    """
    if assignment == "by_worker":
        stream = own_text(corpus, exchange, seed=seed, batch=batch, seq_len=seq_len)
    else:
        has_chain = replicated(exchange) is not None
        landed, first = chain_hashes(exchange) if has_chain else round_hashes(outer, seed)
        stream = AssignedStream(
            training_text(corpus, seq_len=seq_len),
            batch=batch,
            seq_len=seq_len,
            peer=id_of(exchange.peer) if has_chain else f"{exchange.rank}",
            landed=lambda: ranks.broadcast(landed() if ranks.is_leader else b""),
            first=lambda: ranks.broadcast(first() if ranks.is_leader else b""),
        )
    stream = with_fingerprint(stream, corpus)
    return RankStream(stream, rank=ranks.rank, ranks=ranks.size) if ranks.size > 1 else stream


def own_text(corpus: Corpus, exchange: Exchange, *, seed: int, batch: int, seq_len: int) -> Stream:
    """Return the stream of this worker's part of the text or, for a late joiner, of the text that it shares."""
    order = order_seed(exchange, seed)
    if shares_rank(exchange) and isinstance(corpus, SequentialCorpus):
        return corpus.late_stream(batch=batch, seq_len=seq_len, seed=order)
    return corpus.stream(rank=exchange.rank, size=exchange.size, batch=batch, seq_len=seq_len, seed=order)


def peer_of_windows(peer: str, *, has_chain: bool) -> str:
    """Return the peer with this name, as `assigned_windows` expects it.

    has_chain: whether the exchange has a chain of commits. If not, the name must be the worker's rank.
    """
    return id_of(peer) if has_chain else f"{int(peer)}"


def chain_hashes(exchange: Exchange) -> tuple[Callable[[], bytes], Callable[[], bytes]]:
    """Return the arguments `landed` and `first` of AssignedStream, for an exchange with a chain of commits."""
    return lambda: landed_commit(exchange), lambda: first_commit(exchange)


def round_hashes(outer: TrainerHooks, seed: int) -> tuple[Callable[[], bytes], Callable[[], bytes]]:
    """Return the arguments `landed` and `first` of AssignedStream, for an exchange without a chain of commits."""

    def landed() -> bytes:
        return b"" if outer.last_landed is None else hash_without_chain(seed, outer.last_landed)

    return landed, lambda: hash_without_chain(seed, BEFORE_FIRST)


def order_seed(exchange: Exchange, seed: int) -> int:
    """Return the seed of the order in which this worker reads its part of the text.

    This is the run's seed, except for a late joiner that shares its part of the text with a member. A member that
    returns keeps its part and its order, so it continues exactly at the position in its checkpoint.
    """
    return late_joiner_seed(exchange.peer) if shares_rank(exchange) else seed
