"""Run workers as processes that torchrun has started."""
