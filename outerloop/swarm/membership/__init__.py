"""Membership of a run: roster records, formation of the member list, sessions, incarnations."""

import outerloop.swarm.hivemind_import  # noqa: F401  before anything that imports hivemind
