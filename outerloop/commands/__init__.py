"""Commands, one file each. Of the packages below, only `config` and `launcher` import hydra."""
