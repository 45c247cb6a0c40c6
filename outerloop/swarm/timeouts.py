"""All timeouts of the swarm, in seconds. Every await in this package is bounded by one of these or by its caller.

The values are chosen for the open internet. If all peers run on one machine, a timeout expires only if a peer is dead
or frozen. `limit` applies a timeout.
"""

from __future__ import annotations

import asyncio

START_S = 12.0  # time limit for starting p2pd and reaching one initial peer, including all retries
BOOTSTRAP_S = 6.0  # p2pd is relaunched for this long, because an initial peer may still be starting
RELAUNCH_S = 1.0  # pause between two launches of p2pd
STOP_S = 3.0  # time limit for each step of a shutdown: DHT, streams, SIGTERM to p2pd
DHT_S = 10.0  # time limit for one roster read or write; hivemind abandons a frozen node after 3 s

ROSTER_EXPIRY_S = 60.0  # a peer that does not refresh its record for this long is removed
ROSTER_REFRESH_S = 20.0  # interval at which a record is refreshed: three chances before it expires
ROSTER_CLOCKS_S = 10.0  # clock difference tolerated when a record's expiration is checked; hivemind tolerates 3 s
ROSTER_LEAST_S = 5.0  # minimum interval between two writes of a record
VIEW_S = 5.0  # time limit for one short request to a peer, e.g. for that peer's member list
LISTED_S = 1.0  # with an allow-list, a roster read takes at most this long; late answers are used by the next read
FORM_POLL_S = 0.1, 1.0  # first and longest pause between two roster checks while the swarm forms
FORM_GRACE_S = 10.0  # once more than half of the members see the same list, they wait this long for the others

TURN_AWAY_S = 5.0  # time limit for sending a refusal to an unknown peer
HOLD_S = 600.0  # a stream of an unlisted peer that asks too often is held open, unread, for this long ± 50 %
FIRST_FRAME_S = 5.0  # a non-member's stream is closed if its request does not arrive within this time
OPEN_S = 10.0  # time limit for opening one stream, including the dial
STALL_S = 30.0  # time limit per 256 KiB piece (70 kbit/s); 8 transfers on a 1 Mbit/s link get 125 kbit/s each
TRANSFER_S = 30.0  # first turn of a source, and turn of an upload, while others wait: 3.75 MB at 1 Mbit/s
BUSY_S = 10.0  # interval of keep-alives to a peer that is waiting; it gives up after STALL_S of silence
RETRY_S = 0.1, 2.0  # first and longest pause between attempts to reach a peer
EXHAUSTED_S = 1.0  # pause before retrying after file descriptors or disk space ran out
GONE_AFTER_S = 6.0  # a peer counts as gone if every dial fails for this long; libp2p dials at most once per 5 s
GONE_TRIES = 3  # GONE_AFTER_S applies only after more than this number of consecutive failed dials

SEND_S = 10.0  # time limit for sending one ballot; the next view makes up for a lost ballot
POLL_S = 60.0  # a peer has this long to offer its payload, which may not be ready yet; then it is asked again
PULL_S = 600.0  # longest wait for the next piece of a payload from any peer; the total time is not limited
INDEX_S = 60.0  # time limit for the index of a corpus from one peer; 1 MiB takes 8 s at 1 Mbit/s
SHARD_RETRY_S = 10.0  # pause before a shard of a corpus that no peer has sent is requested again
SOURCES_S = 20.0  # interval at which a machine that downloads a corpus looks for further peers that have it
AUDIT_S = 600.0  # time limit for fetching the leaves and the state of one audit
CHUNK_S = 1200.0  # like PULL_S, for an 8 MiB chunk of a state; longer because donors have longer queues
HISTORY_S = 30.0  # time limit for fetching missed commits, or evidence, from one peer
HEDGE_S = 0.5  # if a peer has not answered within this time, other peers are asked as well
LEAD_S = 5.0  # timeout for a leader that could propose but does not; doubled in each of the next three views
REPORTS_S = 1.0  # with exchange.trust=nobody, a leader waits this long for other peers' locks; longer in later views
RETURN_S = 60.0  # in an open run, a returning peer waits this long for its last roster before it believes other peers
RETURN_POLL_S = 10.0  # pause between two requests of a returning peer for the commits of all peers that it knows
ASK_S = 5.0  # interval at which a peer outside the roster asks to join
HASHED_S = 2.0  # a payload waits this long for the hash of a newly copied state; enough for about 3 GB
CERTIFY_S = 30.0  # a joiner still waiting for certification logs it after this time, then after 2x, 4x, ...
DONATE_S = 90.0  # a joiner waits this long for a donor to land the commit and copy its state; must exceed POLL_S
LATE_OFFER_S = 5.0  # once most donors offer the same state, a joiner waits this long for the next donor's offer
STATE_S = 24 * 3600.0  # how long other ranks and peers wait while one rank or peer loads a state
STATE_KEPT_S = 600.0  # a copied state is dropped once no peer has requested it for this long
CALL_S = 30.0  # time limit for a call from the training thread to the network thread that sends nothing to peers
MEET_S = 60.0  # a live peer that does not join the others within this time at a run's start or end is left out
TELL_S = 10.0  # a round that takes longer is logged, and again each time that its duration doubles
LOOK_S = 4.0, 32.0  # first and longest pause between reachability checks in a round; the first is below TELL_S
NOTICE_S = 5.0  # time limit for notifying one peer whether this peer is ready for a gossip pair
UNHEARD_S = 10.0  # pause before the next notice to a peer that could not be notified
ANSWER_S = 5.0  # time limit for answering a pair proposal; peers answer at once, so a slower one is frozen or gone
TURN_S = 0.2  # mean pause between a ready peer's proposals, so that notices can arrive
DOUBT_S = 30.0  # a partner is asked for the outcome of a pair for this long; then this peer ends the pair in doubt
PROBE_S = 1.0  # first pause between two polls of a member in a final gather
MEASURE_S = 20.0  # time limit for one probe: a few round trips and 1 MiB in each direction, about 17 s at 1 Mbit/s
WATCH_S = 2.0  # pause between an observer's roster reads

RESIGN_S = 10.0  # a leaving peer stays at most this long to decide the round in which it has voted, and to resign
RESIGNED_S = 0.1  # interval at which a leaving peer checks whether the round in which it has voted is decided
LINGER_S = 10.0  # a finished peer stays online this long for peers that have not received everything yet


limit = asyncio.timeout
"""Time limit of a block: `async with limit(seconds)` raises TimeoutError if the block takes longer."""
