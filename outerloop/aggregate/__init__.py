"""AXIS aggregate: contributions -> one tensor. All peers sum the same payloads in peer-name order, so replicas agree.

P peers; Δ̂_p is the decoded payload of peer p: values, or coefficients if its compressor applies a transform (dct.py).
"""
