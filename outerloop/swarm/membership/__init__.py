"""Who takes part in a run: records, roster, forming, sessions."""

import outerloop.swarm.hivemind_import  # noqa: F401  before anything that imports hivemind
