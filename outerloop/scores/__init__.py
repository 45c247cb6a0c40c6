"""Score the payloads of peers: did a peer train on the data that it was assigned, did it copy, does its payload help?

gain.py             estimate how much more a payload improves the assigned windows than other windows of the text
benefit.py          estimate by how much a payload lowers the loss of random windows, relative to the evaluator's own
                    payload
sequential_test.py  decide from the scores of many rounds that a peer scores too low; bounds the false alarms
overlap.py          measure how much of a payload another payload repeats
losses.py           measure the loss of each window with given weights instead of the model's current ones
selection.py        choose whose payloads to score in a round
scorer.py           score the payloads of each round, and accuse the peers that the tests find
"""
