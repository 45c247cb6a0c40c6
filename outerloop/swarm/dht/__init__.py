"""The DHT: hivemind's protocol, with each request checked before it is processed, and with bounded work per request."""

import outerloop.swarm.hivemind_import  # noqa: F401  before anything that imports hivemind
