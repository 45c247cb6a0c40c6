"""The swarm: peers that find and reach each other over the open internet. The only room that imports hivemind.

Of hivemind three layers are used, in one asyncio thread and without a fork: its libp2p daemon (streams whose sender is
proven), its raw binary streams and its DHT. From the floor up:

    identity  folder  thread  framing  board  timeouts      small parts without a network
    daemon -> peer -> roster                                 one process of libp2p, one peer, who is there
    status  probe  visitor                                   for those who look on and take no part
    store  pace  partial  holders -> bulk                    content by its hash, from whoever holds it
    membership                                               who takes part: the same list everywhere
    payloads                                                 bytes from their owner to everybody
    unanimous                                                which rounds count

Importing this package quiets hivemind: its log shows errors only (HIVEMIND_LOGLEVEL still rules), and its import keeps
torch's way of sharing tensors with data loaders: hivemind would choose files, which a kill -9 leaves in /dev/shm.
"""

import logging
import os

os.environ.setdefault("HIVEMIND_MEMORY_SHARING_STRATEGY", "file_descriptor")

import hivemind  # noqa: F401  (after the line above, and before the one below: the import sets the level)

if "HIVEMIND_LOGLEVEL" not in os.environ:
    logging.getLogger("hivemind").setLevel(logging.ERROR)
