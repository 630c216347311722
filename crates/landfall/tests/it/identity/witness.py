"""Holds the lock of its name from its first line to its last, and says so in /out/log.

Whoever finds the lock taken runs beside another of its name. It says that, and waits for its turn.
"""

import fcntl
import os
import signal
import time

NAME, UID = os.environ["NAME"], os.environ["ID"]


def say(what):
    with open("/out/log", "a") as log:
        log.write(f"{what} {NAME} {UID} {time.monotonic():.3f}\n")


def end(_signal, _frame):
    say("end")
    os._exit(0)


signal.signal(signal.SIGTERM, end)
lock = open(f"/out/{NAME}.lock", "a")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    say("beside")
    fcntl.flock(lock, fcntl.LOCK_EX)
say("start")
while True:
    signal.pause()
