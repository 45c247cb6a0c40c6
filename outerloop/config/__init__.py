"""Build the objects of a run from hydra's yaml files and command-line overrides."""
