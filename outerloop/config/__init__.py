"""Configuration: from yaml and overrides to the objects of a run. The home of hydra."""
