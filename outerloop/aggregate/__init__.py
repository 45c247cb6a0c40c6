"""AXIS aggregate: how the contributions are combined into one tensor. Every peer adds them in peer-name order, so that
replicas stay equal.

P is the number of peers. Δ̂_p is the decoded payload of peer p: values, or coefficients if the compressor applies a
transform (compress/dct.py).
"""
