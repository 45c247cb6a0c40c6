"""Score the payloads of peers: did a peer train on the data that it was assigned, or did it copy a payload?

gain.py             estimate how much more a payload improves the assigned windows than other windows of the text
sequential_test.py  decide from the gains of many rounds that a peer does not train, with a bounded rate of false alarms
overlap.py          measure how much of a payload another payload repeats
losses.py           measure the loss of each window with given weights instead of the model's current ones
scorer.py           score the payloads of each round, and accuse the peers that the tests find
"""
