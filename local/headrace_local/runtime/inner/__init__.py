"""The code that runs in small interpreters between the runtime and a container's own processes.

Rule of this package: standard library only, quick to import (the interpreter is started with `-I -S`), and no state
except the files in the container's folder. A test imports it that way.
"""
