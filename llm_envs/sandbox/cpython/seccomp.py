"""A seccomp filter, in BPF, of the system calls that sandboxed CPython may not make.

`build_filter` maps the machine's name to the filter's bytes. A refused call fails with an error number: the code sees
`PermissionError`, and its process does not end. The numbers are those of the kernel's `unistd.h`. Calls newer than
2019 (424 and up: `io_uring`, `clone3`, `openat2`, ...) fail with "no such call"; the C library then uses older ones,
which are listed here.
"""

from __future__ import annotations

import errno
import os
import struct
from dataclasses import dataclass

__all__ = ["ARCHITECTURES", "build_filter", "build_shell_filter"]

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""BPF: load a word; jump if it is equal, at least, has one of the bits; return."""
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_REFUSE, _NO_SUCH_CALL = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16
"""Offsets in `struct seccomp_data`."""

_CLONE_THREAD = 0x10000
_NEW_NAMESPACES = 0x7E020000
_SOCKET_FAMILIES = (1, 2, 10, 16)
"""Unix, IPv4, IPv6, netlink. AF_VSOCK (40) would reach the host of a virtual machine, whatever the network."""
_TYPING = (0x5412, 0x541C)
"""TIOCSTI, TIOCLINUX."""
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_SET_PARENT_DEATH_SIGNAL = 1
_FIRST_NEW_CALL = 424
_REFUSED_IOCTLS = {
    "TIOCSTI": 0x5412,
    "TIOCLINUX": 0x541C,
    "FIOASYNC": 0x5452,
    "FIOSETOWN": 0x8901,
    "SIOCSPGRP": 0x8902,
}
"""Typing on a terminal, and signals to the owner of a descriptor, who may be any process of the user."""
_REFUSED_FCNTLS = {
    "F_SETOWN": 8,
    "F_SETSIG": 10,
    "F_SETOWN_EX": 15,
    "F_SETLEASE": 1024,
    "F_NOTIFY": 1026,
    "F_SETPIPE_SZ": 1031,
}
"""Such signals again, leases on files of others, and pipes that hold memory outside of the limit."""


@dataclass(frozen=True)
class _Architecture:
    """System call numbers of one kind of machine."""

    audit: int
    """`AUDIT_ARCH_...`."""
    refused: tuple[int, ...]
    """Processes, sockets, larger buffers of pairs of them, descriptors and pages in transit, signals, mounts,
    namespaces, keys, shared memory, priorities, limits, devices."""
    changing_files: tuple[int, ...]
    """Calls that change a file or directory without a descriptor opened for writing."""
    opening: tuple[tuple[int, int], ...]
    """(number, argument that has the flags)."""
    clone: int
    prlimit64: int
    prctl: int
    ioctl: int
    fcntl: int
    tgkill: int
    socket: int
    refused_in_shells: tuple[int, ...]
    """Mounts, namespaces, keys, BPF, performance counters, faults, modules, clocks, swap, memory of other processes,
    handles of files, and memory that belongs to no process (System V, `memfd_create`)."""


# fmt: off
ARCHITECTURES: dict[str, _Architecture] = {
    "x86_64": _Architecture(
        audit=0xC000003E,
        refused=(
            41, 42, 49, 50, 57, 58, 59, 322, 101, 310, 311, 312, 62, 200, 129, 297, 165, 166, 155, 161, 167, 168, 169,
            170, 171, 175, 176, 313, 179, 163, 164, 159, 227, 305, 172, 173, 246, 320, 248, 249, 250, 272, 308, 298,
            321, 323, 319, 303, 304, 103, 153, 135, 154, 29, 30, 31, 64, 65, 66, 220, 68, 69, 70, 71, 240, 241, 206,
            209, 300, 237, 238, 256, 279, 141, 144, 142, 203, 314, 251, 160, 133, 259, 212, 180, 134, 136, 139, 156,
            54, 46, 307, 278, 222, 244,
        ),
        changing_files=(
            85, 82, 264, 316, 83, 258, 84, 86, 265, 87, 263, 88, 266, 90, 91, 268, 92, 93, 94, 260, 76, 77, 188, 189,
            190, 197, 198, 199, 132, 235, 280, 261, 285,
        ),
        opening=((2, 1), (257, 2)),
        clone=56, prlimit64=302, prctl=157, ioctl=16, fcntl=72, tgkill=234, socket=41,
        refused_in_shells=(
            165, 166, 155, 161, 272, 308, 248, 249, 250, 321, 298, 323, 175, 176, 313, 246, 320, 169, 167, 168, 163,
            164, 227, 159, 305, 179, 303, 304, 310, 311, 312, 101, 103, 212, 29, 68, 319, 279, 256, 237, 238, 172, 173,
        ),
    ),
    "aarch64": _Architecture(
        audit=0xC00000B7,
        refused=(
            198, 203, 200, 201, 221, 281, 117, 270, 271, 272, 129, 130, 138, 240, 40, 39, 41, 51, 224, 225, 142, 161,
            162, 105, 106, 273, 60, 89, 170, 171, 112, 266, 104, 294, 217, 218, 219, 97, 268, 241, 280, 282, 279, 264,
            265, 116, 58, 92, 194, 196, 195, 190, 193, 191, 192, 186, 189, 188, 187, 180, 181, 0, 2, 262, 235, 237, 238,
            239, 140, 119, 118, 122, 274, 30, 164, 33, 18, 42,
            208, 211, 269, 75, 107, 184,
        ),
        changing_files=(38, 276, 34, 37, 35, 36, 52, 53, 55, 54, 45, 46, 5, 6, 7, 14, 15, 16, 88, 47),
        opening=((56, 2),),
        clone=220, prlimit64=261, prctl=167, ioctl=29, fcntl=25, tgkill=131, socket=198,
        refused_in_shells=(
            40, 39, 41, 51, 97, 268, 217, 218, 219, 280, 241, 282, 105, 106, 273, 104, 294, 142, 224, 225, 89, 170, 112,
            171, 266, 60, 264, 265, 270, 271, 272, 117, 116, 18, 194, 186, 279, 239, 238, 235, 237,
        ),
    ),
}
# fmt: on


def build_filter(machine: str, *, read_only: bool) -> bytes | None:
    """Return a filter as an array of `struct sock_filter`, or None if the machine is not known here.

    Args:
        machine: As in `platform.machine()`.
        read_only: Refuse to change any file, and to send a signal even to itself: for a process that shares the file
            system and the process table with others.
    """
    architecture = ARCHITECTURES.get(machine)
    if architecture is None:
        return None
    refused = architecture.refused
    if read_only:
        refused += (*architecture.changing_files, architecture.tgkill)
    program = _beginning(architecture, refused)
    program += _if(architecture.clone, 0, _ANY_BIT, _CLONE_THREAD, passes=False)
    # Reading a limit passes a null pointer as the new limit. Both halves of the pointer are checked.
    program += [
        (_EQUAL, 0, 6, architecture.prlimit64),
        (_LOAD, 0, 0, _ARGUMENTS + 8 * 2),
        (_EQUAL, 0, 3, 0),
        (_LOAD, 0, 0, _ARGUMENTS + 8 * 2 + 4),
        (_EQUAL, 0, 1, 0),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    ]
    program += _if(architecture.prctl, 0, _EQUAL, _SET_PARENT_DEATH_SIGNAL)
    for call, commands in ((architecture.ioctl, _REFUSED_IOCTLS), (architecture.fcntl, _REFUSED_FCNTLS)):
        for command in commands.values():
            program += _if(call, 1, _EQUAL, command)
    if read_only:
        for number, argument in architecture.opening:
            program += _if(number, argument, _ANY_BIT, _WRITING)
    program.append((_RETURN, 0, 0, _ALLOW))
    return _encode(program)


def build_shell_filter(machine: str) -> bytes | None:
    """Return a filter for any programs in namespaces; None if the machine is not known here."""
    architecture = ARCHITECTURES.get(machine)
    if architecture is None:
        return None
    program = _beginning(architecture, architecture.refused_in_shells)
    program += _if(architecture.clone, 0, _ANY_BIT, _NEW_NAMESPACES)
    for command in _TYPING:
        program += _if(architecture.ioctl, 1, _EQUAL, command)
    n = len(_SOCKET_FAMILIES)
    program += [(_EQUAL, 0, n + 2, architecture.socket), (_LOAD, 0, 0, _ARGUMENTS)]
    program += [(_EQUAL, n - i, 0, family) for i, family in enumerate(_SOCKET_FAMILIES)]
    program += [(_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
    return _encode(program)


def _beginning(architecture: _Architecture, refused: tuple[int, ...]) -> list[tuple[int, int, int, int]]:
    program = [
        (_LOAD, 0, 0, _MACHINE),
        (_EQUAL, 1, 0, architecture.audit),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _FIRST_NEW_CALL),
        (_RETURN, 0, 0, _NO_SUCH_CALL),
    ]
    for number in refused:
        program += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE)]
    return program


def _encode(program: list[tuple[int, int, int, int]]) -> bytes:
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _if(number: int, argument: int, test: int, operand: int, *, passes: bool = True) -> list[tuple[int, int, int, int]]:
    """Refuse a call if the low half of one of its arguments passes a test; with `passes=False`, if it does not."""
    return [
        (_EQUAL, 0, 4, number),
        (_LOAD, 0, 0, _ARGUMENTS + 8 * argument),
        (test, int(not passes), int(passes), operand),
        (_RETURN, 0, 0, _REFUSE),
        (_LOAD, 0, 0, _NUMBER),
    ]
