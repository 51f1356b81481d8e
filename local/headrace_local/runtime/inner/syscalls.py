"""The system calls that Python 3.11 does not wrap. Every function raises OSError with the call's name and path."""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWPID = 0x20000000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_MOVE = 0x2000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MNT_DETACH = 0x2

_PR_SET_PDEATHSIG = 1
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_SYS_MOUNT_SETATTR = 442  # the same number on every architecture
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_RDONLY = 0x1

_libc = ctypes.CDLL(None, use_errno=True)


class _MountAttr(ctypes.Structure):
    _fields_ = [
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    ]


def unshare(flags: int) -> None:
    """Move this process into new namespaces of the kinds in `flags`."""
    _check(_libc.unshare(flags), "unshare")


def setns(descriptor: int, flags: int) -> None:
    """Enter the namespace behind an open /proc/PID/ns file."""
    _check(_libc.setns(descriptor, flags), "setns")


def mount(source: str, target: str, *, kind: str = "", flags: int = 0, options: str = "") -> None:
    """mount(2); `kind` is the file system type, `options` its own option string."""
    result = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        os.fsencode(kind) or None,
        ctypes.c_ulong(flags),
        os.fsencode(options) or None,
    )
    _check(result, f"mount {kind or 'bind'} {source} on", target)


def unmount(target: str) -> None:
    """Detach a mount from the tree now; the kernel removes it once nothing uses it."""
    _check(_libc.umount2(os.fsencode(target), MNT_DETACH), "umount", target)


def make_readonly(target: str, *, recursive: bool = False) -> None:
    """Make the mount at `target` read-only in this mount namespace, leaving its other flags as they are."""
    attributes = _MountAttr(attr_set=_MOUNT_ATTR_RDONLY)
    done = _libc.syscall(
        ctypes.c_long(_SYS_MOUNT_SETATTR),
        ctypes.c_int(_AT_FDCWD),
        ctypes.c_char_p(os.fsencode(target)),
        ctypes.c_uint(_AT_RECURSIVE if recursive else 0),
        ctypes.byref(attributes),
        ctypes.c_size_t(ctypes.sizeof(attributes)),
    )
    if done == 0:
        return
    # Kernels before 5.12: a remount has to repeat the flags that are already set, or it would try to clear them.
    kept = os.statvfs(target).f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("none", target, flags=MS_REMOUNT | MS_BIND | MS_RDONLY | kept)


def pivot_root_here() -> None:
    """Make the working folder, a mount point, the root of this mount namespace, and detach the old root."""
    if _libc.pivot_root(b".", b".") == 0:
        unmount(".")
    else:  # the old root is the initial ramfs, which cannot be pivoted away from
        mount(".", "/", flags=MS_MOVE)
        os.chroot(".")
    os.chdir("/")


def set_hostname(name: str) -> None:
    """Set the host name of this UTS namespace."""
    encoded = name.encode()
    _check(_libc.sethostname(encoded, ctypes.c_size_t(len(encoded))), "sethostname", name)


def die_with_parent(signal_number: int) -> None:
    """Have the kernel send this signal when the thread that forked us ends."""
    _prctl(_PR_SET_PDEATHSIG, signal_number, "prctl(PR_SET_PDEATHSIG)")


def no_new_privileges() -> None:
    """From now on no exec can gain privileges."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, "prctl(PR_SET_NO_NEW_PRIVS)")


def drop_from_bounding_set(capability: int) -> None:
    """Drop a capability for good. EINVAL is ignored: this kernel does not have the capability."""
    try:
        _prctl(_PR_CAPBSET_DROP, capability, "prctl(PR_CAPBSET_DROP)")
    except OSError as error:
        if error.errno != 22:
            raise


def _prctl(option: int, value: int, name: str) -> None:
    zero = ctypes.c_ulong(0)
    _check(_libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), zero, zero, zero), name)


def _check(result: int, call: str, path: str | None = None) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}", path)
