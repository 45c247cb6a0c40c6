"""Access control: identity keys, signatures, allow-list and rate limits."""

import outerloop.swarm.hivemind_import  # noqa: F401  before anything that imports hivemind
