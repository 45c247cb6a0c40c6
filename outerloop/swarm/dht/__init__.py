"""The DHT: hivemind's protocol with a check before all work and a bound on each request."""

import outerloop.swarm.hivemind_import  # noqa: F401  before anything that imports hivemind
