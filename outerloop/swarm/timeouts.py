"""All timeouts of the swarm, in seconds. Every await in this package is bounded by one of these or by its caller.

They are chosen for the open internet. If all peers run on one machine, no timeout is reached unless a peer is dead or
frozen. `limit` applies them.
"""

from __future__ import annotations

import asyncio

START_S = 12.0  # start p2pd and reach one initial peer, including all attempts
BOOTSTRAP_S = 6.0  # p2pd is relaunched for this long, because an initial peer may be starting at the same moment
RELAUNCH_S = 1.0  # pause between two launches
STOP_S = 3.0  # each step of a shutdown: DHT, streams, SIGTERM to p2pd
DHT_S = 10.0  # one read or write of the roster; hivemind gives up on a frozen node after 3 s and asks the next

ROSTER_EXPIRY_S = 60.0  # a peer that does not refresh its record for this long is removed
ROSTER_REFRESH_S = 20.0  # interval of refreshes of a record: three chances before it expires
ROSTER_CLOCKS_S = 10.0  # clock difference allowed for when a record's lifetime is checked; hivemind: 3 s
ROSTER_LEAST_S = 5.0  # minimum interval between two writes of a record
VIEW_S = 5.0  # ask one peer which members it sees
LISTED_S = 1.0  # with an allow-list, reading the roster takes this long at most; late answers count in the next read
FORM_POLL_S = 0.1, 1.0  # first and longest pause between two roster checks while the swarm forms
FORM_GRACE_S = 10.0  # once more than half of the members see the same list, they wait this long for the others

TURN_AWAY_S = 5.0  # send a refusal to an unknown peer
HOLD_S = 600.0  # hold an unread stream of an unknown peer that asks repeatedly; varied at random by ± 50 %
FIRST_FRAME_S = 5.0  # receive the request on a stream of a non-member; otherwise the stream is closed
OPEN_S = 10.0  # open one stream, including the dial
STALL_S = 30.0  # time for one 256 KiB piece, at 70 kbit/s; 8 transfers sharing a link of 1 Mbit/s have 125 kbit/s each
TRANSFER_S = 30.0  # turn of one source while other transfers wait: 3.75 MB at 1 Mbit/s
BUSY_S = 10.0  # interval of notices to a peer that waits for a transfer and gives up if it hears nothing for STALL_S
RETRY_S = 0.1, 2.0  # first and longest pause between two attempts to reach a peer
EXHAUSTED_S = 1.0  # pause before retrying an operation that lacked file descriptors or disk space
GONE_AFTER_S = 6.0  # a peer is gone if every dial fails for this long; libp2p dials at most once in 5 s
GONE_TRIES = 3  # a peer is gone only if more than this number of dials have failed as well

SEND_S = 10.0  # send one ballot; a lost ballot is made up for in the next view
POLL_S = 60.0  # ask a peer for its payload, which it may not have yet; then ask again
PULL_S = 600.0  # longest time without a piece of a payload from any peer; the total time is not limited
CHUNK_S = 1200.0  # the same as PULL_S, for an 8 MiB chunk of a state; longer, because donors have longer queues
HISTORY_S = 30.0  # fetch the commits that this peer missed, or evidence, from one peer
HEDGE_S = 0.5  # if a peer has not answered by this time, other peers are asked as well
LEAD_S = 5.0  # timeout for a leader that could propose but does not; doubled in each later view
ASK_S = 5.0  # interval at which a peer outside the roster asks to join
HASHED_S = 2.0  # a payload waits this long for the hash of a state that was just copied; enough to hash about 3 GB
CERTIFY_S = 30.0  # a joiner logs that it waits for certification after this time, twice this time, 4 times, and so on
DONATE_S = 90.0  # a joiner waits this long for a donor to land the commit and copy its state; more than POLL_S
STATE_S = 24 * 3600.0  # ranks of an island wait this long for the rank that takes over the state of a run
STATE_KEPT_S = 600.0  # a copied state that no peer has requested for this long is dropped
CALL_S = 30.0  # a call from the training thread into the network thread, if the call does not use the network
MEET_S = 60.0  # at the start and end of a run, a live peer that does not join the others within this time is left out
TELL_S = 10.0  # a round that takes longer is logged; again after twice this time, and so on
LOOK_S = 4.0, 32.0  # first and longest pause between reachability checks in a round; the first pause ends before TELL_S
NOTICE_S = 5.0  # notify one peer whether this peer is ready for a pair
UNHEARD_S = 10.0  # pause before a peer that could not be notified is notified again
ANSWER_S = 5.0  # a proposal is answered at once, so a peer that takes longer is frozen or gone
TURN_S = 0.2  # mean pause between proposals of a ready peer, so that notices can arrive
DOUBT_S = 30.0  # ask a partner for the outcome of a pair; after this time, continue without the outcome
PROBE_S = 1.0  # pause between two checks of whether the peers awaited by a final gather are alive
MEASURE_S = 20.0  # one probe: a few round trips and 1 MiB each way, about 17 s at 1 Mbit/s
WATCH_S = 2.0  # pause between two reads of the roster by an observer

LINGER_S = 10.0  # a finished peer stays this long for peers that have not received everything yet


limit = asyncio.timeout
"""`async with limit(seconds)` raises TimeoutError if the block takes longer."""
