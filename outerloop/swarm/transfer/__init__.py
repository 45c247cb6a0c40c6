"""Download of content by its hash, from any peer that holds it."""
