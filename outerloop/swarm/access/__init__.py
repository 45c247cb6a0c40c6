"""Keys, signatures, allow-list and rate limits: who a peer is, and what it may ask."""

import outerloop.swarm.hivemind_import  # noqa: F401  before anything that imports hivemind
