"""Run one peer's gather rounds: the entry point for the exchange and for the state transfer.

The path of another peer's payload through the modules:

    payload_requests.py    asks the peer for the hash and size of its payload until the peer has one
    payload_downloads.py   downloads the payload, checks that its owner signed it for this round, and stores it
    consensus_loop.py      reports the stored payload to the consensus state machine, and carries out the effects that
                           the state machine returns, such as sending messages or writing votes to disk
    committed_rounds.py    downloads the payloads that a decided commit names and this peer lacks, and keeps the round
                           for the trainer

Here and in the modules below, a round is what one commit decides: its `number` is that of the commit, which is r *
fragments + f for fragment f of the trainer's round r. RoundContext.round_of converts it for messages to the user.

The network side runs ahead of the trainer. It votes and follows the chain while the trainer computes or sleeps, and
keeps up to ROUNDS_BEHIND rounds until the trainer has taken them (committed_rounds.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from outerloop.swarm.access.hard_state_file import HardStateFile
from outerloop.swarm.access.signatures import KeySigner
from outerloop.swarm.consensus.chain import Chain
from outerloop.swarm.consensus.commit import Commit
from outerloop.swarm.consensus.explain import waiting_for
from outerloop.swarm.consensus.hotstuff.chain import HotStuffChain
from outerloop.swarm.consensus.paxos.chain import PaxosChain
from outerloop.swarm.consensus.state import HardState
from outerloop.swarm.consensus.votes import CommitCertificate
from outerloop.swarm.gather.ballot_rpc import BallotRpc
from outerloop.swarm.gather.catch_up import CatchUpTask
from outerloop.swarm.gather.committed_rounds import CommittedRounds
from outerloop.swarm.gather.consensus_loop import ConsensusLoop
from outerloop.swarm.gather.log_rpc import LogRpc
from outerloop.swarm.gather.payload_downloads import PayloadDownloads
from outerloop.swarm.gather.payload_requests import OwnPayloads, PayloadRequests, PayloadRpc
from outerloop.swarm.gather.reachability import ReachabilityProbe
from outerloop.swarm.gather.round_context import RoundContext
from outerloop.swarm.gather.round_store import RoundStore
from outerloop.swarm.gather.round_timers import RoundTimers
from outerloop.swarm.gather.settings import GatherSettings, Trust
from outerloop.swarm.gather.state_roots import StateRoots
from outerloop.swarm.gather.statement_witness import StatementWitness
from outerloop.swarm.membership.incarnations import Incarnations
from outerloop.swarm.p2p.network_thread import BackgroundTasks
from outerloop.swarm.p2p.transport import Transport
from outerloop.swarm.resource_exhaustion import EXHAUSTION
from outerloop.swarm.storage import Disk
from outerloop.swarm.transfer.bulk import Bulk
from outerloop.swarm.transfer.signed_payload import strip_signatures
from outerloop.swarm.transfer.sources import ContentUnavailable
from outerloop.swarm.transfer.uploads import RateLimiter
from outerloop.swarm.validation import SIGNATURE_BYTES, id_of
from outerloop.types import UserError

PROTOCOLS: dict[Trust, type[Chain]] = {"members": PaxosChain, "nobody": HotStuffChain}
"""exchange.trust -> the state machine that decides the rounds."""


class GatherRunner:
    """One peer's gather rounds.

    Args:
        own: this peer's name.
        names: returns a map from id to name of the peers that may take part.
        limiter: limits the rate at which payloads are sent; None: unlimited.
        incarnations: decides which process of a peer is accepted; None: every process is accepted.

    `bulk` transfers payloads and counts their bytes. `log_rpc` fetches commits. The caller reports unusable payloads to
    `requests`. `roots` holds the states that a majority has certified. `hard_state_file` keeps this peer's votes.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        run: str,
        own: str,
        names: Callable[[], Mapping[str, str]],
        disk: Disk,
        rules: GatherSettings,
        max_blob_bytes: int,
        limiter: RateLimiter | None = None,
        incarnations: Incarnations | None = None,
    ) -> None:
        self._settings, self._max_bytes = rules, max_blob_bytes + SIGNATURE_BYTES
        self.context = context = RoundContext(transport.trust, own=own, names=names, fragments=rules.fragments)
        allowed = context.may_take_part
        self._store = RoundStore(disk)
        self.bulk = Bulk(transport, self._store, run=run, allowed=allowed, limiter=limiter)
        self.hard_state_file = HardStateFile(disk, own=own, life=incarnations.life if incarnations else None)
        self.log_rpc = LogRpc(transport, run=run, allowed=allowed, since=context.commits_since)
        self._payload_rpc = PayloadRpc(transport, run=run, allowed=allowed)
        self._ballots = BallotRpc(transport, run=run, names=names, receive=context.receive, incarnations=incarnations)
        self.roots = StateRoots(own=own)
        self.own_payloads = OwnPayloads(context, self._store, self._payload_rpc, self.roots)
        self.downloads = PayloadDownloads(context, self.bulk, self._store, max_bytes=self._max_bytes)
        self.outcomes = CommittedRounds(self._store, self.downloads, own=own)
        self._catch_up = CatchUpTask(context, self.log_rpc, self.outcomes)
        self.comeback = self._catch_up.comeback
        self.requests = PayloadRequests(context, self._payload_rpc, self.downloads, self._catch_up)
        self._probe = ReachabilityProbe(self.look_at)
        self.witness = StatementWitness(
            context, transport, disk, run=run, fail=self.outcomes.fail, stop=self.stop_voting
        )
        self._loop = ConsensusLoop(
            context=context,
            hard_state_file=self.hard_state_file,
            ballots=self._ballots,
            own_payloads=self.own_payloads,
            requests=self.requests,
            downloads=self.downloads,
            outcomes=self.outcomes,
            roots=self.roots,
            catch_up=self._catch_up,
            timers=RoundTimers(context, rules, self.bulk, unreachable=self.requests.unreachable),
            witness=self.witness,
        )
        self._voting, self._tasks = BackgroundTasks(), BackgroundTasks()

    # the chain, and this peer's position in it

    @property
    def roster(self) -> tuple[str, ...]:
        """The names of the peers that decide the current round; empty before the rounds begin."""
        return self.context.chain.hard_state.roster if self.context.begun else ()

    @property
    def last_commit(self) -> Commit | None:
        """The newest commit that this peer knows, or None before the rounds begin."""
        return self.context.chain.hard_state.head if self.context.begun else None

    @property
    def log(self) -> tuple[CommitCertificate, ...]:
        """The last commits that this peer knows, oldest first; empty before the rounds begin."""
        return self.context.chain.hard_state.log if self.context.begun else ()

    def head_of(self, number: int) -> bytes | None:
        """Return the digest of a commit that the trainer has landed.

        Return None if the commit is no longer stored, or if this peer must first download the state (`needs_state`).
        """
        return None if self.outcomes.needs_state else self.outcomes.digest(number)

    def commit_before(self, number: int) -> bytes:
        """Return the digest of the commit before round `number`, or b"" if this peer's log does not reach it."""
        return self.context.chain.hard_state.digest_before(number) if self.context.begun else b""

    @property
    def needs_state(self) -> bool:
        """Return whether this peer must download the run's state. It may already follow the commits of the others."""
        return self.outcomes.needs_state

    async def look_at(self, peer: str) -> None:
        """Ask a peer for newer commits. If it has any, start to fetch them.

        Raises BrokenStream, Unreachable or TimeoutError if the peer does not answer.
        """
        await self._catch_up.look_at(peer)

    # start and stop

    async def serve(self) -> None:
        """Start to answer requests from other peers. Their ballots are queued until the rounds begin."""
        for service in (self.bulk, self._payload_rpc, self.log_rpc, self._ballots, self.witness.accusations):
            await service.serve()

    async def begin(self, *, session: str, roster: Iterable[str], number: int) -> None:
        """Start a new chain whose first round is `number`. Remove all stored payloads, which belong to other chains."""
        await self._begin_new(HardState.first(session=session, peer=self.context.own, roster=roster, number=number))

    async def follow_from(self, decided: CommitCertificate, *, session: str) -> None:
        """Follow the chain from this commit on. The caller must download the state, then call `state_arrived`.

        Raises ContentUnavailable if this peer is in the commit's roster but has no record of its votes, e.g. because
        its last process ended before its first vote. It can join after a commit that drops it.
        """
        joining = None if self.context.begun else self._joining(decided, session)
        self._catch_up.awaiting_state = True
        self.roots.withdraw(0)
        self.outcomes.skip_to(decided.commit.number)
        self.outcomes.about_to_land(decided.commit)
        if joining is None:
            self.context.act(lambda chain: chain.install_snapshot(decided))
        else:
            await self._begin_new(joining)

    def _joining(self, decided: CommitCertificate, session: str) -> HardState:
        try:
            return HardState.joining(session=session, peer=self.context.own, head=decided)
        except ValueError as error:
            raise ContentUnavailable(str(error)) from error

    def state_arrived(self) -> None:
        """Record that the trainer has the state, so that this peer may ask to join the roster."""
        self._catch_up.awaiting_state = False

    def resume(self, hard_state: HardState) -> None:
        """Take part in the rounds, starting from `hard_state`, which must already be on disk.

        Raises UserError if the hard state was written with another exchange.trust.
        """
        context, signatures = self.context, self.context.trust.signatures
        protocol = PROTOCOLS[self._settings.trust]
        if not hard_state.belongs_to(byzantine=protocol.byzantine):
            raise UserError(
                f"this peer's stored votes were cast with another exchange.trust than {self._settings.trust}: set the"
                " value of that run, or start a new run in another folder"
            )
        chain = protocol(
            hard_state,
            signer=KeySigner(signatures, session=hard_state.session, own=context.own),
            gather_policy=self._settings.gather_policy,
            absent_rounds=self._settings.absent_rounds,
            allowed=lambda name: id_of(name) in context.trust.allow,
            max_bytes=self._max_bytes,
        )
        context.begin(chain)
        context.trust.allow.current_number = lambda: chain.number
        self.witness.begin(hard_state.session)
        self.outcomes.begin(hard_state)
        self.own_payloads.resume(hard_state.number)
        self._loop.look()
        self._voting.start(self._loop.run())
        self._tasks.start(self.witness.accusations.ask_around())
        self._tasks.start(self.comeback.watch())

    async def resign(self) -> None:
        """Leave the roster (`ConsensusLoop.resign`). Do nothing if this peer handles no events of the consensus."""
        if self.context.begun and self._voting.running:
            await self._loop.resign()

    def stop_voting(self) -> None:
        """Stop handling events, so that this peer casts no more votes."""
        self._voting.cancel()

    def stop(self) -> None:
        """Cancel all tasks immediately."""
        self.stop_voting()
        self._loop.cancel()
        self._tasks.cancel()

    async def _begin_new(self, hard_state: HardState) -> None:
        self._store.clear()
        await self.hard_state_file.write(hard_state)
        self.resume(hard_state)

    # the rounds of the trainer

    async def offer(self, number: int, blob: bytes) -> None:
        """Offer `blob` as this peer's payload for a round, unless it has already offered one or the round is over."""
        await self.own_payloads.offer(number, blob)

    def pop_landed_digest(self, number: int) -> bytes:
        """Return the digest of the commit that the trainer has just landed, and forget it.

        The trainer's thread calls this once per landing.
        """
        return self.outcomes.pop_landed_digest(number)

    def decided(self, number: int) -> bool:
        """Return whether a round is decided. Raises LogTruncated if this peer is behind. Any thread may call this."""
        return self.outcomes.decided(number)

    async def outcome(self, number: int) -> list[tuple[str, bytes | memoryview]]:
        """Wait until a round is decided and all of its payloads are stored.

        Return (name, payload) for each participant, sorted by name. Raises LogTruncated if this peer is too far behind.
        """
        watching = self._tasks.start(self._probe.watch(self.context.others))
        try:
            return await strip_signatures(await EXHAUSTION.wait_out(partial(self.outcomes.take, number)))
        finally:
            watching.cancel()

    def waits_for(self, number: int) -> str:
        """Return a one-line explanation of why a round has no outcome yet."""
        name, current = self.context.round_of(number), self.context.round_of(self.context.chain.number)
        if reason := self.outcomes.lacks(number) or self.lacks_quorum():
            return f"{name}: {reason}"
        waiting = [f"{current}, {waiting_for(self.context.chain)}", self.comeback.advice()]
        return "; ".join(filter(None, waiting))

    def lacks_quorum(self) -> str:
        """Return a one-line message if too few peers are reachable to decide the current round, else ""."""
        remaining, quorum = self.context.chain.hard_state.remaining, PROTOCOLS[self._settings.trust].quorum
        return self._probe.lacks_quorum(remaining, quorum, ahead=self.comeback.advice())
