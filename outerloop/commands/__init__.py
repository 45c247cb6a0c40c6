"""The subcommands of `outerloop`, one module each. Outside this package, only `config` and `launcher` import hydra."""
