"""Show a run, a swarm or a sweep as a live web page (`outerloop watch`)."""
