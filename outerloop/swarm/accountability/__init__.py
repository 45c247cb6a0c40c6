"""Evidence against peers that sign contradicting statements, and expulsion of these peers."""
