# An HTTP server for drills. /slow answers after SLOW seconds, every other path at once. MODE says what SIGTERM does:
#   graceful  closes the port, answers open requests and says `Connection: close`, then exits
#   close     the same, and every answer ever says `Connection: close`
#   exit      exits at once
#   reset     resets all connections, also those with open requests, and exits a second later
#   ignore    nothing
import os, signal, socket, struct, sys, threading, time

mode, slow = os.environ.get('MODE', 'graceful'), float(os.environ.get('SLOW', 3))
stopping = threading.Event()
guard, connections, busy = threading.Lock(), set(), 0

def serve(connection):
    global busy
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with guard: connections.add(connection)
    try:
        while True:
            head = b''
            while b'\r\n\r\n' not in head:
                more = connection.recv(4096)
                if not more: return
                head += more
            with guard: busy += 1
            try:
                if head.startswith(b'GET /slow'): time.sleep(slow)
                last = mode == 'close' or stopping.is_set() or b'Connection: close' in head or b'connection: close' in head
                answer = b'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n' + (b'Connection: close\r\n' if last else b'') + b'\r\nok'
                connection.sendall(answer)
            finally:
                with guard: busy -= 1
            if last: return
    except OSError: pass
    finally:
        with guard: connections.discard(connection)
        connection.close()

def finish():
    # Idle connections stay open for their next request, which is answered with `Connection: close`.
    end = time.monotonic() + slow + 2
    while time.monotonic() < end:
        with guard:
            if busy == 0 and not connections: break
        time.sleep(0.02)
    os._exit(0)

def stop(*_):
    stopping.set()
    if mode == 'exit': os._exit(0)
    # Closing alone would leave the port open until the accepting thread returns.
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    if mode == 'reset':
        with guard:
            for connection in connections:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
                fd = connection.detach()
                os.close(fd)
        threading.Timer(1, os._exit, [0]).start()
    else:
        threading.Thread(target=finish).start()

listener = socket.create_server(('', 8080), backlog=1024)
signal.signal(signal.SIGTERM, signal.SIG_IGN if mode == 'ignore' else stop)

def accept():
    while True:
        try: connection, _ = listener.accept()
        except OSError: return
        threading.Thread(target=serve, args=(connection,), daemon=True).start()

threading.Thread(target=accept, daemon=True).start()
# A signal that arrives just before signal.pause() would be handled only with the next one.
while True: time.sleep(0.05)
