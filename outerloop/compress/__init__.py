"""AXIS compress: what one tensor becomes on the wire. One algorithm a file; codecs nest."""
