"""The swarm: peers that find and reach each other over the open internet. The only package that imports hivemind.

Of hivemind three layers are used, in one asyncio thread and without a fork: its libp2p daemon (streams whose sender is
proven), its raw binary streams and its DHT. Packages, each imports those above it only:

    validation  timeouts  resource_exhaustion    checked fields of messages; every limit in time; out of files or disk
    consensus          agreement on the commits of a run (Paxos): pure, without network, clock, torch and hivemind
    access             keys and signatures, the allow-list, rate limits, what was refused
    dht                hivemind's DHT with a check before all work and a bound on each request
    p2p                one libp2p daemon, one node, streams and who may open them
    accountability     evidence against peers that contradict themselves; who is expelled
    membership         records and rosters; how a run forms; what each peer states at its beginning
    transfer           content by its hash, from whichever peers hold it
    gather             rounds of all: payloads, ballots, commits, catching up
    state_transfer     the run's state for a peer that joins late or fell behind
    gossip             rounds in pairs, and the average of all at the end
"""
