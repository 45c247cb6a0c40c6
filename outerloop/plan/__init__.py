"""What a run would take on a network that one does not have yet: links, transfers, rounds. Pure: numpy and heapq."""
