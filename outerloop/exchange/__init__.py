"""AXIS exchange: which peers' messages a peer receives in a round. To an exchange, messages are opaque bytes."""
