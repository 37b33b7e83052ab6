"""Connections that begin a request and never end it, kept up: what the server closes is opened again."""

import contextlib
import selectors
import socket
import threading

BEGINNINGS = (b"GET / HT", b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99\r\n\r\nusername=")


class HalfSent:
    """`number` of them at this port of 127.0.0.1, within a `with`; `opened` counts also those that were opened again.

    `pause`: seconds until they are opened again.
    """

    def __init__(self, port, number, beginning=BEGINNINGS[0], pause=0.0):
        self.opened, self._address, self._number, self._beginning = 0, ("127.0.0.1", port), number, beginning
        self._pause = pause
        self._ready, self._stop = threading.Event(), threading.Event()

    def __enter__(self):
        self._thread = threading.Thread(target=self._keep_up)
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *error):
        self._stop.set()
        self._thread.join()

    def _keep_up(self):
        with selectors.DefaultSelector() as selector:
            while not self._stop.is_set():
                while len(selector.get_map()) < self._number:
                    self._open(selector)
                self._ready.set()
                self._stop.wait(self._pause)
                for key, _ in selector.select(timeout=0.05):
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
            for key in list(selector.get_map().values()):
                key.fileobj.close()

    def _open(self, selector):
        one = socket.create_connection(self._address)
        with contextlib.suppress(OSError):
            one.sendall(self._beginning)
        one.setblocking(False)
        selector.register(one, selectors.EVENT_READ)
        self.opened += 1
