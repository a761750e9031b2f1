"""The version of the installed distribution.

`logitsieve` itself is a namespace of several source folders and can hold no attribute of its own.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("logitsieve")
except PackageNotFoundError:  # a checkout that is not installed
    __version__ = "0+unknown"
