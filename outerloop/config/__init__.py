"""Configuration: from yaml files and overrides to the objects of a run, with hydra."""
