"""AXIS aggregate: how contributions become one tensor. All peers sum them in peer-name order, so that replicas agree.

P peers; Δ̂_p is the decoded payload of peer p: values, or coefficients if its compressor applies a transform (dct.py).
"""
