"""AXIS exchange: which peers' messages a peer receives in a round. Messages are opaque bytes to every exchange."""
