"""Content by its hash, from whichever peers hold it."""
