"""The run manifest: the settings of a run as plain data, for machines that run `outerloop join`."""
