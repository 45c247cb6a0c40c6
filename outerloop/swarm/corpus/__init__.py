"""The training data of a run: token shards by hash, which every peer of the run serves and a newcomer downloads."""
