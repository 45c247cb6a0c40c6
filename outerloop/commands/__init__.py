"""Commands of the command line, one module each. Besides this package, only `config` and `launcher` import hydra."""
