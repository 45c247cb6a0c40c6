"""Evidence against peers that sign contradicting statements, and the expulsion of such peers."""
