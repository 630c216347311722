# Arguments are URL=ANSWER. Asks each URL until it answers so, and prints those that do not within some seconds. The
# answer `-` means that there is none, a number is the length of a long one.
import sys, time, urllib.request


def ask(url):
    try:
        body = urllib.request.urlopen(url, timeout=1).read()
        return body.decode() if len(body) < 1000 else str(len(body))
    except Exception:
        return "-"


for argument in sys.argv[1:]:
    url, expected = argument.rsplit("=", 1)
    end = time.monotonic() + 8
    while (answer := ask(url)) != expected and time.monotonic() < end:
        time.sleep(0.02)
    if answer != expected:
        print(url, "answered", answer, "instead of", expected)
