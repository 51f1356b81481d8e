"""The distribution's version."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("headrace")
except PackageNotFoundError:  # run from a source tree that is not installed
    VERSION = "0.0.0"
