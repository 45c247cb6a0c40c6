"""AXIS aggregate: how contributions become one tensor. Every peer sums them in peer-name order, so replicas agree.

P is the number of peers. Δ̂_p is the decoded payload of peer p: values, or coefficients if the compressor applies a
transform (compress/dct.py).
"""
