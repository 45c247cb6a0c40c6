"""AXIS data: whose text an inner step reads. One source a file, all behind the `Corpus` of corpus.py.

stdlib (no download, the default), text (own files), tokens (llm.c shards), hf (Hugging Face streams).
"""
