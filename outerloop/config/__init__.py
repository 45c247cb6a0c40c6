"""Build the objects of a run from yaml files and overrides, with hydra."""
