"""The swarm: peers that find and reach each other over the open internet. The only package that imports hivemind.

It uses three layers of hivemind in one asyncio thread, without forking this process: the libp2p daemon (streams with an
authenticated sender), the raw binary streams and the DHT. Each entry of the following list imports only entries above
it:

    validation  timeouts  resource_exhaustion    field checks; timeouts; retries when files or disk space run out
    storage  strikes   crash-safe files; for how many rounds a peer that fails is excluded
    notifier           wakes the tasks that wait for a change
    consensus          consensus on a run's commits (Paxos, HotStuff-2): pure logic without network, clock or torch
    access             keys and signatures, the allow-list, rate limits, a log of refusals
    dht                hivemind's DHT, with checks and limits for every request
    p2p                the libp2p daemon, a peer's node and its streams, and admission control for streams
    accountability     evidence against peers that sign contradicting statements; expelled peers
    manifest           the settings of a run for machines that want to join, signed by a peer
    invites            admission of invited peers to a run with an allow-list, and removals of peers
    membership         records and rosters; formation of a run; each peer's signed opening statement
    transfer           transfer of content, identified by its hash, from any peers that hold it
    gather             rounds among all peers: payloads, ballots, commits, catching up
    audit              audits: a peer repeats some inner steps of another peer and compares the results
    corpus             the training data of a run, served by all peers and downloaded by newcomers
    state_transfer     transfer of the run's state to a peer that joins late or fell behind
    gossip             rounds in pairs, and the final average of all peers' weights
"""
