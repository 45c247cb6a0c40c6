"""outerloop: train one model on machines that are far apart.

Workers take many inner steps alone; every H steps the outer loop exchanges compressed pseudo-gradients.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("outerloop-train")
except PackageNotFoundError:  # run from a plain checkout
    __version__ = "0+checkout"
