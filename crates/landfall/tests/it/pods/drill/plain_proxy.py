# Forwards requests to an API server as an administrator, and hides the group landfall.dev: what other Kubernetes clusters
# look like to a drill. Usage: plain_proxy.py URL CA_FILE TOKEN_FILE; prints the port that it listens on.
import http.client, http.server, ssl, sys, urllib.parse

url, ca, token = urllib.parse.urlparse(sys.argv[1]), sys.argv[2], open(sys.argv[3]).read().strip()
trusted = ssl.create_default_context(cafile=ca)

class Forward(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def forward(self):
        body = self.rfile.read(int(self.headers.get('Content-Length') or 0))
        if self.path.startswith('/apis/landfall.dev'):
            text = b'404 page not found\n'
            self.send_response(404); self.send_header('Content-Type', 'text/plain; charset=utf-8')
            self.send_header('Content-Length', str(len(text))); self.end_headers(); self.wfile.write(text)
            return
        upstream = http.client.HTTPSConnection(url.hostname, url.port, context=trusted)
        headers = {k: v for k, v in self.headers.items() if k.lower() not in ('host', 'authorization', 'connection')}
        upstream.request(self.command, self.path, body or None, {**headers, 'Authorization': 'Bearer ' + token})
        answer = upstream.getresponse()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() in ('content-type', 'warning'): self.send_header(name, value)
        # The length of a watch is not known, so the end of the connection is the end of the answer.
        self.send_header('Connection', 'close'); self.end_headers(); self.close_connection = True
        while piece := answer.read1(65536):
            self.wfile.write(piece); self.wfile.flush()
    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = forward
    def log_message(self, *_): pass

server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Forward)
print(server.server_port, flush=True)
server.serve_forever()
