"""Every limit in time of the swarm, in seconds. No await of this package goes without one of these or a caller's own.

They are for the open internet: on one machine nothing here is ever reached unless a peer is dead or frozen.
`limit` applies them.
"""

from __future__ import annotations

import asyncio

START_S = 12.0  # p2pd up and in touch with one initial peer, all attempts together
BOOTSTRAP_S = 6.0  # p2pd is launched again for this long: an initial peer may be starting at this very moment
RELAUNCH_S = 1.0  # pause between two launches
STOP_S = 3.0  # each step of a shutdown: DHT, streams, SIGTERM to p2pd
DHT_S = 10.0  # one read or write of the roster; hivemind gives up on a frozen node after 3 s and asks the next

ROSTER_EXPIRY_S = 60.0  # a peer that stopped refreshing its record is forgotten after this
ROSTER_REFRESH_S = 20.0  # three chances to refresh before the record expires
ROSTER_CLOCKS_S = 10.0  # what a record may live longer for, by the clock of another: hivemind allows 3 s between them
ROSTER_LEAST_S = 5.0  # a record is not written more often than this, whatever news there is
VIEW_S = 5.0  # asking one peer which members it sees
LISTED_S = 1.0  # a read of a listed roster waits so long for its peers; who answers later is heard by the next one
FORM_POLL_S = 0.1, 1.0  # first and longest pause between two looks at the roster while the swarm forms
FORM_GRACE_S = 10.0  # more than half of the members that see the same list wait so long for the others to see it

TURN_AWAY_S = 5.0  # telling a stranger that it is not answered
FIRST_FRAME_S = 5.0  # the request on a stream of a peer that is not a member; later: closed
OPEN_S = 10.0  # opening one stream, dial included
STALL_S = 30.0  # one 256 KiB piece, 70 kbit/s: 8 transfers that share a link of 1 Mbit/s have 125 kbit/s each
TRANSFER_S = 30.0  # from one holder while others wait, then it is their turn: 3.75 MB at 1 Mbit/s
BUSY_S = 10.0  # who queues for a transfer is told so this often: silence for STALL_S would mean frozen
RETRY_S = 0.1, 2.0  # first and longest pause between two attempts at a peer
EXHAUSTED_S = 1.0  # pause before what failed for want of files or disk space is tried again
GONE_AFTER_S = 6.0  # a peer is gone when every dial failed for this long: libp2p really dials once in 5 s
GONE_TRIES = 3  # ... and when more than this many dials failed

SEND_S = 10.0  # one ballot; the next view makes up for it
POLL_S = 60.0  # asking a peer for its payload, which it may not have yet; then asked again
PULL_S = 600.0  # no piece of a payload has come from anybody; as long as pieces come it may take what it takes
CHUNK_S = 1200.0  # the same of 8 MiB of a state: givers of a state have more to queue for it
HISTORY_S = 30.0  # the commits that were missed
HEDGE_S = 0.5  # who is asked for them and is silent for so long is not waited for alone: others are asked beside it
LEAD_S = 5.0  # a leader that could propose and does not is given up after this; twice as long in each later view
ASK_S = 5.0  # a peer that is not counted on asks this often to be
HASHED_S = 2.0  # a payload waits for the hash of a state that was copied just before, to name it: 3 GB or so
CERTIFY_S = 30.0  # who waits for its state to be named in the rounds says so after this, and again after twice that
DONATE_S = 90.0  # a donor comes to the landing that a joiner waits for, and has copied its state; longer than POLL_S
STATE_S = 24 * 3600.0  # ranks of an island wait so long for the one that takes over the state of a run
STATE_KEPT_S = 600.0  # a copied state that nobody has asked for again for this long is dropped
CALL_S = 30.0  # the training thread asks the network thread for something that is at hand
MEET_S = 60.0  # who is alive and does not come to a meeting for this long is not waited for
TELL_S = 10.0  # a round that takes longer is told about, and again after twice that, and so on
LOOK_S = 4.0, 32.0  # who waits for a round asks after this who is in reach: known when TELL_S is over; longest pause
NOTICE_S = 5.0  # telling one peer whether this one is ready for a pair
UNHEARD_S = 10.0  # a peer that could not be told is told again after this
ANSWER_S = 5.0  # a proposal is answered at once, so whoever takes longer is frozen or gone
TURN_S = 0.2  # mean pause between two moments at which a ready peer may propose: notices of one moment get there in it
DOUBT_S = 30.0  # asking a partner for its last word before going on without it
PROBE_S = 1.0  # pause between two looks whether those that an assembly waits for are still there
MEASURE_S = 20.0  # one probe: a few round trips and 1 MiB each way, so 1 Mbit/s just passes
WATCH_S = 2.0  # pause between two looks of an observer at the roster

LINGER_S = 10.0  # how long a finished peer stays for those that have not got everything yet


limit = asyncio.timeout
"""`async with limit(seconds)`: TimeoutError when the block takes longer."""
