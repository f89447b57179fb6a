"""A real S3 server behind a proxy that spoils some of its answers, for tests."""

import contextlib
import http.client
import http.server
import logging
import random
import socket
import struct
import threading
import time

from moto.server import ThreadedMotoServer

FAULTS = ("error", "busy", "reset", "truncate", "slow")
SLOW_SECONDS = 0.3
ANSWER = "<Error><Code>{}</Code><Message>{}</Message></Error>"


class FaultyStore:
    """An S3 server at `url`.

    `rate` is the share of requests that meet one of `faults`, `is_down` fails all of them, and
    `hook`, called with method and path before each request, may change either.
    """

    def __init__(self, seed=0):
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Proxy)
        self._server.daemon_threads = True
        self._server.store = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.calm()

    def calm(self):
        """Fail nothing."""
        self.rate, self.faults, self.is_down = 0.0, FAULTS, False
        self.hook = lambda method, path: None
        self.requests, self.spoiled = [], []

    def __enter__(self):
        self._moto.start()
        self.inner = self._moto.get_host_and_port()
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
        self._moto.stop()

    def fault(self, method, path):
        """Return what is to go wrong with a request, if anything."""
        with self._lock:
            self.hook(method, path)
            self.requests.append((method, path))
            if self.is_down:
                return "busy"
            fault = self._random.choice(self.faults) if self._random.random() < self.rate else None
            if fault:
                self.spoiled.append(fault)
            return fault


class _Proxy(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def handle(self):
        with contextlib.suppress(ConnectionError):
            super().handle()

    def _serve(self):
        body = self._body()
        fault = self.server.store.fault(self.command, self.path)
        if fault == "reset":
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.connection.close()
            self.close_connection = True
        elif fault == "error":
            self._refuse(500, "InternalError", "We encountered an internal error.")
        elif fault == "busy":
            self._refuse(503, "SlowDown", "Please reduce your request rate.")
        else:
            time.sleep(SLOW_SECONDS if fault == "slow" else 0)
            self._pass_on(body, fault == "truncate")

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve

    def _body(self):
        """Read what comes with a request."""
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while nbytes := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(nbytes))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _pass_on(self, body, truncate):
        """Ask the server, and answer with what it says, or with a half of it."""
        connection = http.client.HTTPConnection(*self.server.store.inner)
        headers = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in ("expect", "transfer-encoding", "content-length", "connection")
        }
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else len(content)
        self.send_header("Content-Length", str(length or 0))
        self.end_headers()
        if truncate and content:
            self.wfile.write(content[: len(content) // 2])
            self.close_connection = True
        else:
            self.wfile.write(content)

    def _refuse(self, status, code, message):
        """Answer with an error."""
        content = ANSWER.format(code, message).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
