"""The swarm: peers that find and reach each other over the open internet. The only package that imports hivemind.

It uses three layers of hivemind, in one asyncio thread and without forking a process: the libp2p daemon (streams with
an authenticated sender), the raw binary streams and the DHT. In this list, each entry imports only those above it:

    validation  timeouts  resource_exhaustion    field checks; timeouts; lack of file descriptors or disk space
    consensus          consensus on the commits of a run (Paxos): pure, without network, clock, torch or hivemind
    access             keys and signatures, the allow-list, rate limits, a log of refusals
    dht                hivemind's DHT, with checks and limits for every request
    p2p                the libp2p daemon and the node of a peer; its streams, and admission control for them
    accountability     evidence against peers that sign contradicting statements; expelled peers
    membership         records and rosters; forming a run; each peer's signed opening statement
    transfer           transfer of content that is identified by its hash, from any peers that hold it
    gather             rounds of all peers: payloads, ballots, commits, catching up
    state_transfer     transfer of the run's state to a peer that joins late or fell behind
    gossip             rounds in pairs, and the average of all peers' weights at the end
"""
