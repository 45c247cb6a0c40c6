"""AXIS exchange: whose bytes come back. Bytes in, bytes out: no exchange looks inside a message."""
