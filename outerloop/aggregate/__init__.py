"""AXIS aggregate: contributions -> one tensor. All sum the same payloads in peer-name order, so replicas agree.

P peers, Δ̂_p what peer p's payload decodes to: values, or coefficients where its compressor transforms (dct.py).
"""
