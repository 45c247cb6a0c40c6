"""Streams between peers over hivemind's libp2p daemon."""

import outerloop.swarm.hivemind_import  # noqa: F401  before anything that imports hivemind
