"""DHT: hivemind's protocol, with every request checked before any work, and bounded."""

import outerloop.swarm.hivemind_import  # noqa: F401  before anything that imports hivemind
