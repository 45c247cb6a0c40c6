"""Evidence against peers that contradict themselves, and their expulsion."""
