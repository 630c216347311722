# Answers requests with the name of its pod. On request it asks another server again and again and records when the
# answer changes, in seconds since the boot of the machine.
import http.server, os, signal, threading, time, urllib.request

NAME = os.uname().nodename.encode()
recorded = []


def ask(url):
    try:
        return urllib.request.urlopen(url, timeout=0.2).read().decode()
    except Exception:
        return "-"


def poll(url):
    while True:
        answer = ask(url)
        if not recorded or recorded[-1][1] != answer:
            recorded.append((time.clock_gettime(time.CLOCK_BOOTTIME), answer))
        time.sleep(0.02)


class Peer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = NAME
        if self.path == "/large":
            body = b"x" * 1000000
        elif self.path.startswith("/poll/"):
            url = "http://" + self.path.removeprefix("/poll/")
            threading.Thread(target=poll, args=[url], daemon=True).start()
        elif self.path == "/recorded":
            body = "".join("%.3f %s\n" % change for change in recorded).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
http.server.ThreadingHTTPServer(("", 8080), Peer).serve_forever()
