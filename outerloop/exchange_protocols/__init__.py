"""Optional protocols of an exchange, and functions that use a protocol or, if the exchange lacks it, a default.

rounds.py          how rounds are decided
    Replicated     a majority decides which messages form a round; a peer may miss rounds, or join late and fetch state
    JoinsAtRound   the first round of this peer is the one that was passed to `join`
    Chained        each round is a commit of a chain, whose hash identifies the history of the run
transfers.py       bytes outside of rounds, and what is counted
    Meeting        all peers exchange bytes outside of rounds
    StateSender    sends the initial state to some peers more cheaply than through a meeting
    Metered        counts bytes and transfer time
    Counted        reports additional counters, such as the number of rejections
shared_decode.py   decoding once for several peers
    SharedDecode   peers of one process, or the ranks of an island, share the decoded messages of a round
peers.py           what happens to single peers
    RejectsPeers   excludes peers whose messages are unusable
    Publishes      shows what each peer has contributed to those who observe the run
    ReportsRoster  reports which peers join and leave the run
"""

from __future__ import annotations

from outerloop.exchange_protocols.peers import (
    Publishes,
    RejectsPeers,
    ReportsRoster,
    public_names,
    report_contributors,
    report_refused,
    roster_news,
)
from outerloop.exchange_protocols.rounds import (
    Chained,
    JoinsAtRound,
    Replicated,
    decided,
    first_commit,
    joined_round,
    landed_commit,
    late_joiner,
    replicated,
    report_landed,
    shares_rank,
)
from outerloop.exchange_protocols.shared_decode import (
    Read,
    Reading,
    SharedDecode,
    decode_shared,
)
from outerloop.exchange_protocols.transfers import (
    Counted,
    Meeting,
    Metered,
    StateSender,
    Unmetered,
    counters,
    hand_over,
    meeting,
    metered,
)

__all__ = [
    "Chained",
    "Counted",
    "JoinsAtRound",
    "Meeting",
    "Metered",
    "Publishes",
    "Read",
    "Reading",
    "RejectsPeers",
    "Replicated",
    "ReportsRoster",
    "SharedDecode",
    "StateSender",
    "Unmetered",
    "counters",
    "decided",
    "decode_shared",
    "first_commit",
    "hand_over",
    "joined_round",
    "landed_commit",
    "late_joiner",
    "meeting",
    "metered",
    "public_names",
    "replicated",
    "report_contributors",
    "report_landed",
    "report_refused",
    "roster_news",
    "shares_rank",
]
