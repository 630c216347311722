"""A process that says what happens to it, when it happens.

    witness.py NAME [--term CODE|ignore|default] [--after SECONDS] [--mark SECONDS]
                    [--until FILE] [--children] [--http PORT]

Every line goes to the pipe /out/NAME: what, then the time of day and the monotonic time in
nanoseconds. The pipe is held open until the end, also by children: whoever reads it sees the end of
the last process as the end of the file.

--term     on any stop signal: exit with this code (0), ignore it, or leave it to the kernel
--after    how long it takes to exit
--until    exits when there is this file
--mark     says `mark` this long after the first stop signal
--children makes a child, and a grandchild in a session of its own, that ignore everything
--http     answers GETs on this port, and says their paths
"""

import argparse
import os
import signal
import threading
import time

options = argparse.ArgumentParser()
options.add_argument("name")
options.add_argument("--term", default="0")
options.add_argument("--after", type=float, default=0)
options.add_argument("--until")
options.add_argument("--mark", type=float)
options.add_argument("--children", action="store_true")
options.add_argument("--http", type=int)
options = options.parse_args()

pipe = os.open(f"/out/{options.name}", os.O_WRONLY)


def say(what):
    # One write is one line, whoever else writes.
    os.write(pipe, f"{what} {time.time_ns()} {time.monotonic_ns()}\n".encode())


if options.children:
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        while True:
            time.sleep(1000)

# Before there are threads: they would take signals away from whoever waits for them.
heard = set(signal.valid_signals()) - {signal.SIGCHLD, signal.SIGKILL, signal.SIGSTOP}
if options.term != "default":
    signal.pthread_sigmask(signal.SIG_BLOCK, heard)

if options.http:
    import http.server  # Not for everybody: it takes longer than all the rest.

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            say(f"GET:{self.path}")
            self.send_response(500)  # T-NODE-31: any answer will do.
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("", options.http), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()

if options.term == "default":
    say("start")
    while True:
        signal.pause()

say("start")
while True:
    number = signal.sigwait(heard)
    say(signal.Signals(number).name)
    if options.mark is not None:
        threading.Timer(options.mark, say, ["mark"]).start()
        options.mark = None
    if options.term != "ignore":
        time.sleep(options.after)
        while options.until and not os.path.exists(options.until):
            time.sleep(0.02)
        say("exit")
        os._exit(int(options.term))
