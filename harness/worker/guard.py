"""The guard of a replica process: sees to it that an engine's helper processes never outlive it.

Engines of real hardware start helpers (an engine core, workers of a tensor-parallel group, a server of their own). They
live in the process group of the replica, and the worker kills that group when the replica has ended. When worker AND
replica are killed -9 nobody is left who would: helpers that wait for a message that never comes hold their accelerator
for ever. So a replica with such an engine forks a guard before it imports anything: a process of the group that sleeps
until the kernel tells it that its parent is gone, then kills the group, itself included.

Why a death signal and not a pipe that closes: helpers are forked from the replica and would inherit its end of the pipe,
and hold it open exactly as long as they live. Why in the group: while the guard is in it, no other group can have its
number. Why a fork so early: no thread exists yet, and the child is a bare interpreter (7 MB measured, 5 of them its own;
no CPU while it sleeps) instead of one with all libraries.
"""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
NAME = b"paceline-guard"
_PARENT_GONE = signal.SIGUSR1
#: A signal to the whole group is for the others; the guard stays as long as its parent does.
_NOT_FOR_US = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def die_with(parent_pid: int, number: signal.Signals = signal.SIGKILL) -> bool:
    """Ask for this signal when the parent ends. False: it already has (the request came too late to be honoured)."""
    _prctl(PR_SET_PDEATHSIG, number)
    return os.getppid() == parent_pid


def start_guard() -> int:
    """Call it once, in the leader of a process group, before any thread exists. Returns the guard's pid."""
    leader = os.getpid()
    if os.getpgrp() != leader:
        raise RuntimeError("a guard kills its whole group; only the leader of a group may start one")
    pid = os.fork()
    if pid:
        return pid
    try:
        _watch(leader)
    finally:
        os._exit(1)


def _watch(leader: int) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {_PARENT_GONE})
    for number in _NOT_FOR_US:
        signal.signal(number, signal.SIG_IGN)
    _prctl(PR_SET_NAME, ctypes.c_char_p(NAME))
    _let_go_of_files()
    there = die_with(leader, _PARENT_GONE)
    while there:
        signal.sigwait({_PARENT_GONE})
        there = os.getppid() == leader  # anybody may send us a signal; only the kernel changes our parent
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(os.getpgrp(), signal.SIGKILL)


def _let_go_of_files() -> None:
    """Nobody must wait for an end of file because a guard holds the other end."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(nothing, fd)
    os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)


def _prctl(option: int, argument: int | ctypes.c_char_p) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, argument, 0, 0, 0)
