"""Training data: the text that inner steps train on. Each source is a module that implements `Corpus` (corpus.py).

Sources: stdlib (the default, no download), text (local files), tokens (llm.c shards), hf (Hugging Face streams), shared
(a corpus that the peers of a run send each other).
"""
