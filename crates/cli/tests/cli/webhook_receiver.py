"""A receiver of Farrier's notices that knows only the documentation.

It prints its port, then one line of JSON for each request: the id, whether the signature is right,
the status of its answer, and the event. The file MODE says what it does: `ok`, `500` or `hang`.
"""

import base64
import hashlib
import hmac
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def verify(key: bytes, headers, body: bytes, tolerance_s: int = 300) -> bool:
    """True if Farrier has signed this body with this key, within the last minutes."""
    stamp = headers["webhook-timestamp"]
    if abs(time.time() - int(stamp)) > tolerance_s:
        return False
    signed = b".".join([headers["webhook-id"].encode(), stamp.encode(), body])
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return hmac.compare_digest("v1," + expected, headers["webhook-signature"])


KEY, MODE = sys.argv[1].encode(), sys.argv[2]


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        with open(MODE, encoding="utf-8") as file:
            mode = file.read().strip()
        status = 500 if mode == "500" else 204
        if mode == "hang":
            status = 0
        event = json.loads(body)
        print(
            json.dumps(
                {
                    "id": self.headers["webhook-id"],
                    "valid": verify(KEY, self.headers, body),
                    "type": self.headers["content-type"],
                    "status": status,
                    "event": event,
                }
            ),
            flush=True,
        )
        if mode == "hang":
            time.sleep(3600)
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
server.daemon_threads = True
print(server.server_port, flush=True)
server.serve_forever()
