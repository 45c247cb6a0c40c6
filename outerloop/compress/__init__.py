"""AXIS compress: how a tensor is encoded for the network. One algorithm per file; codecs can be nested."""
