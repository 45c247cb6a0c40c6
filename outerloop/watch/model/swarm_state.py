"""Compute the page of a swarm from repeated reads of its roster."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from outerloop.report.contributors import total_of
from outerloop.types import listed_names
from outerloop.watch.model.contributors import listed, stated_by_a_peer
from outerloop.watch.model.curve import Curve, Place
from outerloop.watch.model.empty import empty_header
from outerloop.watch.model.event_log import EventLog
from outerloop.watch.model.header import WINDOW, landing_step, model_name, seconds_left
from outerloop.watch.model.page import VERSION, EventKind, Header, Page, Strip
from outerloop.watch.model.swarm_peer import BEHIND_S, SwarmPeer
from outerloop.watch.model.timeline import Timeline, last_late_s
from outerloop.watch.model.values import count, finite, setting, short_name, shown, text

if TYPE_CHECKING:
    from outerloop.core.contributor_rows import ContributorTable
    from outerloop.swarm.membership.roster import Record
    from outerloop.swarm.p2p.round_trips import Link

MAX_PEERS = 1024
"""Maximum number of tracked peers, the same as in a roster. One machine could publish records of more identities."""
MAX_LANDINGS = 500
"""Number of last rounds for which the page remembers when half of the peers had reached them."""
MAX_AHEAD = 20
"""Maximum number of rounds after `newest` that get a column in the timeline: a single peer could claim any round."""
MAX_LEFT = 100
"""Maximum number of peers that have left and are still shown."""
MAX_COUNTED = 16_384
"""Maximum number of peers whose bytes are remembered, so that a peer that comes back is not counted twice."""


@dataclass
class SwarmState:
    """The state of one swarm.

    `run`: exchange.run of the peers. `settings`: the settings of the run with dotted keys; empty if its peers do not
    describe them. `bytes_sent`: bytes of payloads and of the state of the run that all peers sent, including those that
    have left. `counted`: name of each peer -> the bytes that its newest record states, oldest record first.
    """

    run: str
    settings: Mapping[str, Any]
    peers: dict[str, SwarmPeer] = field(default_factory=dict)
    timeline: Timeline = field(default_factory=Timeline)
    events: EventLog = field(default_factory=EventLog)
    landings: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=MAX_LANDINGS))
    began_s: float | None = None
    now_s: float = 0.0
    bytes_sent: int = 0
    counted: dict[str, int] = field(default_factory=dict)
    contributions: ContributorTable | None = None

    def __post_init__(self) -> None:
        self.lockstep = "gossip" not in str(setting(self.settings, "exchange._target_", self.settings.get("exchange")))
        self.loss, self.present = Curve("loss", "training loss"), Curve("peers seen", "peers present")

    def add(
        self,
        now_s: float,
        seen: Sequence[tuple[Record, float]],
        expelled: Mapping[str, str] | None,
        contributions: ContributorTable | None = None,
        links: Mapping[str, Link] | None = None,
    ) -> None:
        """Update the state from one read of the roster.

        Args:
            now_s: time of the read, in seconds since 1970.
            seen: record of each peer present, with its age in seconds.
            expelled: name of each expelled peer -> reason. None: not known now, so the last known ones stay.
            contributions: what each peer has contributed. None: not known now, so the last known ones stay.
            links: the newest link to each peer that was asked, by peer id.
        """
        self.contributions = contributions or self.contributions
        seen, first = seen[:MAX_PEERS], self.began_s is None
        self.began_s, self.now_s = self.began_s or now_s, now_s
        reached = [record.name for record, age_s in seen if self.add_record(record, now_s - age_s, first=first)]
        names = {record.name for record, _ in seen}
        for name, peer in self.peers.items():
            if peer.present and name not in names:
                peer.present = False
                self.log("left", "left, or has been silent for a minute", name)
        if expelled is not None:
            self.add_expelled(expelled)
        self.add_links(links or {})
        self.add_landing()
        self.add_rounds(reached)
        self.find_late_peers()
        self.forget()
        self.add_points()

    def add_record(self, record: Record, written_s: float, *, first: bool) -> bool:
        """Update one peer from its record. Return whether it has reached a new round."""
        peer = self.peers.get(record.name)
        if peer is None or not peer.present:
            self.log("joined", "is in the swarm" if first else "joined", record.name)
        before = peer.round if peer else 0
        if peer is None:
            peer = self.peers[record.name] = SwarmPeer(record, written_s)
        peer.record, peer.written_s, peer.present = record, written_s, True
        self.count_bytes(record.name, peer.bytes_sent)
        return peer.round > before

    def count_bytes(self, name: str, sent: int) -> None:
        """Add the bytes that a peer sent since its record before this one. A smaller number means that it restarted."""
        before = self.counted.pop(name, 0)
        self.bytes_sent += sent - (before if before <= sent else 0)
        self.counted[name] = sent
        if len(self.counted) > MAX_COUNTED:
            del self.counted[next(iter(self.counted))]

    def add_rounds(self, names: Sequence[str]) -> None:
        """Record that these peers have reached a new round."""
        newest = self.newest
        self.timeline.drop_after(newest + MAX_AHEAD)
        for name, peer in ((name, self.peers[name]) for name in names):
            if peer.round <= newest + MAX_AHEAD:
                self.timeline.add(name, peer.round, peer.ready)
            if peer.ready == "failed":
                self.log("failed", f"round {peer.round} did not complete at this peer", name)

    def add_landing(self) -> None:
        """Record when half of the peers had reached the newest round."""
        front = self.front
        if front is not None and (not self.landings or front.round > self.landings[-1][0]):
            self.landings.append((front.round, front.written_s))

    def find_late_peers(self) -> None:
        """Mark the peers that lack a round which half of the peers reached more than BEHIND_S ago.

        With gossip, no peer is marked, because peers need not be in the same round.
        """
        newest = self.newest
        for peer in self.here if self.lockstep else ():
            passed_s = next((reached_s for number, reached_s in self.landings if number > peer.round), self.now_s)
            before, peer.behind = peer.behind, max(0, newest - peer.round) if self.now_s - passed_s > BEHIND_S else 0
            if before and not peer.behind:
                self.log("caught up", f"reached round {peer.round}", peer.record.name)

    def add_expelled(self, expelled: Mapping[str, str]) -> None:
        """Mark these peers as expelled and all others as not expelled, and log each change."""
        for name, peer in self.peers.items():
            before, peer.expelled = peer.expelled, expelled.get(name, "")
            if peer.expelled and not before:
                self.log("refused", f"expelled: {peer.expelled}", name)
            elif before and not peer.expelled:
                self.log("note", "is no longer expelled", name)

    def add_links(self, links: Mapping[str, Link]) -> None:
        """Store the newest link to each peer, and log which peers no longer answer, or answer again.

        A link without a round trip does not replace one that has it: only the measurement was restarted.
        """
        for name, peer in self.peers.items():
            before, link = peer.answers, links.get(peer.record.peer_id)
            if link is not None and (peer.link is None or link.round_trip_s is not None):
                peer.link = link
            if peer.present and before and not peer.answers:
                self.log("killed", "no longer answers", name)
            elif peer.present and peer.answers and not before:
                self.log("joined", "answers again", name)

    def forget(self) -> None:
        """Drop the peers that left longest ago, so that at most MAX_LEFT of them are kept."""
        gone = sorted((name for name, peer in self.peers.items() if not peer.present), key=self.written_s)
        for name in gone[: max(0, len(gone) - MAX_LEFT)]:
            del self.peers[name]

    def written_s(self, name: str) -> float:
        """Return when a peer wrote its newest record, in seconds since 1970."""
        return self.peers[name].written_s

    def log(self, kind: EventKind, what: str, name: str) -> None:
        """Append an event."""
        self.events.add(self.now_s - (self.began_s or self.now_s), kind, what, peer=name)

    @property
    def here(self) -> list[SwarmPeer]:
        """Return the peers that are present."""
        return [peer for peer in self.peers.values() if peer.present]

    @property
    def front(self) -> SwarmPeer | None:
        """Return the peer whose round is the newest one that half of the peers have reached, or None.

        Peers that report no round or are expelled are ignored. The highest reported round is not used, because a single
        peer could claim any number.
        """
        known = [peer for peer in self.here if peer.round and not peer.expelled]
        return sorted(known, key=lambda peer: (-peer.round, peer.written_s))[(len(known) - 1) // 2] if known else None

    @property
    def newest(self) -> int:
        """Return the newest round that half of the peers have reached, or 0."""
        front = self.front
        return front.round if front else 0

    def add_points(self) -> None:
        """Add the mean loss and the number of peers to the curves, if the swarm has reached a new round."""
        place = self.place()
        if self.present.newest is not None and self.present.newest[0].round == place.round:
            return
        self.present.add(place, len(self.here))
        losses = [loss for peer in self.here if peer.status and (loss := finite(peer.status.loss)) is not None]
        if losses:
            self.loss.add(place, sum(losses) / len(losses))

    def place(self) -> Place:
        """Return the current position on each axis of the curves."""
        sent = max((peer.bytes_sent for peer in self.here), default=0)
        return Place(self.newest, self.step(self.newest), None, sent, round(self.now_s - (self.began_s or 0.0), 1))

    def step(self, round_number: int) -> int | None:
        """Return the inner step at which a round lands, or None if the schedule does not fix it."""
        return landing_step(self.settings, round_number)

    def page(self) -> Page:
        """Return the page."""
        names = sorted(self.peers)
        timeline = self.timeline.page(names)
        peers = [
            self.peers[name].page(self.now_s, step=self.step(self.peers[name].round), late_s=last_late_s(cells))
            for name, cells in zip(names, timeline["cells"], strict=True)
        ]
        known = self.contributions
        return {
            "version": VERSION,
            "kind": "swarm",
            "run": self.header(),
            "phase": self.strip() if self.here and self.lockstep else None,
            "peers": peers,
            "timeline": timeline,
            "curves": [curve.page() for curve in (self.loss, self.present) if curve.points],
            "events": list(self.events.entries),
            "contributors": listed(known.rows, peers, others_online=False) if known else [],
            "counted": stated_by_a_peer(known) if known else None,
            "sweep": None,
        }

    def header(self) -> Header:
        """Return the header. Values that are in no record, such as the validation loss and the duration, stay empty."""
        statuses = [peer.status for peer in self.here if peer.status]
        losses = [float(status.loss) for status in statuses if status.loss is not None]
        rounds = count(setting(self.settings, "rounds")) or None
        updated_s = max((peer.written_s for peer in self.peers.values()), default=None)
        known: Header = empty_header(self.run, "running" if self.here else "silent", shown_time(updated_s))
        known["reason"] = "" if self.here else "no peer of the run is present"
        known["recipe"] = text(setting(self.settings, "recipe", ""))
        known["model"] = model_name(self.settings) or text(setting(self.settings, "model", ""))
        known["peers"] = count(setting(self.settings, "exchange.peers")) or None
        known["alive"] = sum(peer.answers for peer in self.here)
        known["round"], known["rounds"] = self.newest, rounds
        known["step"], known["steps"] = self.step(self.newest) or 0, self.step(rounds) if rounds else None
        known["tokens"] = self.tokens()
        known["tokens_per_s"] = shown(sum(finite(status.tokens_per_s) or 0.0 for status in statuses))
        known["eta_s"] = shown(seconds_left(list(self.landings)[-WINDOW - 1 :], rounds))
        known["loss"] = shown(sum(losses) / len(losses)) if losses else None
        known["bytes_sent"] = self.bytes_sent
        return known

    def tokens(self) -> int | None:
        """Return the tokens of all samples that rounds have counted, or None if these or their length are not known."""
        seq_len = count(setting(self.settings, "inner.seq_len"))
        return total_of(self.contributions.rows) * seq_len if self.contributions and seq_len else None

    def strip(self) -> Strip:
        """Return how many peers report the newest round, and which do not. Records do not contain stages of a round."""
        newest = self.newest
        late = [peer for peer in self.here if peer.round < newest]
        words = [f"{len(self.here) - len(late)} of {len(self.here)} peers report round {newest}"]
        for title, peers in (
            ("not yet", [peer for peer in late if peer.answers]),
            ("no answer from", [peer for peer in self.here if not peer.answers]),
        ):
            if peers:
                words.append(f"{title}: {short_list(sorted(text(peer.record.name) for peer in peers))}")
        return {"round": newest + 1, "stages": [], "text": "; ".join(words)}


def short_list(names: Sequence[str]) -> str:
    """Return the first names as text, shortened, and the number of the others."""
    return listed_names([short_name(name) for name in names])


def shown_time(seconds: float | None) -> float | None:
    """Round a time to a tenth of a second, so that the page does not change with every read."""
    return None if seconds is None else round(seconds, 1)
