"""The training data of a run, split into token shards. Every peer serves the shards, and a newcomer downloads them."""
