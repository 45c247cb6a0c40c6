"""AXIS data: the text that inner steps train on. Each module is one source and implements `Corpus` of corpus.py.

stdlib (the default, no download), text (local files), tokens (llm.c shards), hf (Hugging Face streams).
"""
