"""Transfer of content, identified by its hash, from any peer that holds it."""
