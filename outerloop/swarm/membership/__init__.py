"""Membership of a run: roster records, the member list and how it forms, sessions, and copies of a key."""

import outerloop.swarm.hivemind_import  # noqa: F401  before anything that imports hivemind
