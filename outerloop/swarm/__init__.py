"""The swarm: peers that find and reach each other over the open internet. The only room that imports hivemind.

Of hivemind three layers are used, in one asyncio thread and without a fork: its libp2p daemon (streams whose sender is
proven), its raw binary streams and its DHT. From the floor up:

    exhaustion -> disk  thread                                  no files to open, no space: waited out
    identity  folder  framing  board  timeouts                  small parts without a network
    budget  event_queue                                         so much a second; messages of others in turn
    signatures  refusals -> trust -> records  shelf  sealed     who said it, whom a peer answers, what it turned down
    dht_values -> dht_guard -> dht_node                         the DHT, and how much others can make it do
    daemon  admission -> peer -> directory -> roster            one process of libp2p, one peer, who is there
    status  probe  visitor                                      for those who look on and take no part
    pace  busy  partial  holders -> slots -> gifts -> bulk       content by its hash, from whoever holds it
    settings -> mismatched  common                              who has other settings, and which; what all hold
    member_list  latecomers -> membership  meetings             who takes part, and a look at each other
    meetings  common -> opening                                 what each states at the beginning, the same to all
    agreement and its parts  set_back                           what each round came to; no clock, no network
    store  payloads  pulls  penalties -> asking                 payloads of a round, whatever becomes of them
    post  proof -> history -> following  timers  reach -> rounds  the same with both: ballots, commits, who is in reach
    manifest -> donor  download -> handover                     the state of the run, for who comes late
    partners -> pairing  patience                               gossip: who meets whom, and how long a peer waits
    notices  handshake -> verdicts -> gossip                    ... who is ready, and how a pair ends alike
    shares  collection -> assembly                              each peer fetches the signed share of every other
    incarnation -> incarnations                                 which process of a peer is taken for it
    presence                                                    a peer with its record and the members it sees

Importing this package quiets hivemind: its log shows errors only (HIVEMIND_LOGLEVEL still rules), and its import keeps
torch's way of sharing tensors with data loaders: hivemind would choose files, which a kill -9 leaves in /dev/shm.
"""

import logging
import os

os.environ.setdefault("HIVEMIND_MEMORY_SHARING_STRATEGY", "file_descriptor")

import hivemind  # noqa: F401  (after the line above, and before the one below: the import sets the level)

if "HIVEMIND_LOGLEVEL" not in os.environ:
    logging.getLogger("hivemind").setLevel(logging.ERROR)
