"""What runs between the runtime and the container's own process, in a small interpreter of its own.

Rule of this package: standard library only, quick to import (the interpreter is started with `-I -S`), and no state
but the files of the container's folder. A test imports it that way.
"""
