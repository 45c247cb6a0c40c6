"""How one tensor travels through a round: `plain` for any axes, `fused` where two kernels do the whole of it."""
