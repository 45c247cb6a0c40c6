"""AXIS exchange: which peers' messages a peer receives in a round. Exchanges treat messages as opaque bytes."""
