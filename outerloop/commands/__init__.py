"""The subcommands of `outerloop`, one module each. Besides this package, only `config` and `launcher` import hydra."""
