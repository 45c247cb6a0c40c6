"""AXIS compress: how one tensor is encoded for the network. One algorithm per file; codecs can be nested."""
