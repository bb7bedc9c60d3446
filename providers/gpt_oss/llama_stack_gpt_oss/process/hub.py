"""The engine's side of the socket, without threads: frames are read between two steps, without waiting."""

import contextlib
import json
import os
import selectors
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .frames import line

CHUNK_BYTES = 1 << 18
UNSENT_BYTES = 1 << 26  # maximum backlog of a client, in bytes
LINE_BYTES = 1 << 26


@dataclass(eq=False, slots=True)
class Peer:
    """A client process and its buffers."""

    socket: socket.socket
    received: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)


class Hub:
    """Accepts clients, and exchanges frames with them."""

    def __init__(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self.peers: set[Peer] = set()
        self._deserted = time.monotonic()  # when the last peer disconnected
        self.greeting: dict[str, Any] | None = None  # first frame for a new peer

    @property
    def idle_seconds(self) -> float:
        """For how long no peer has been connected."""
        return 0.0 if self.peers else time.monotonic() - self._deserted

    def poll(self, seconds: float | None) -> Iterator[tuple[Peer, dict[str, Any] | None]]:
        """Yield the received frames; None instead of a frame if the peer has disconnected."""
        for key, events in self._selector.select(seconds):
            if key.fileobj is self._listener:
                self._accept()
                continue
            if key.fileobj == self._woken:
                os.eventfd_read(self._woken)
                continue
            peer: Peer = key.data
            if events & selectors.EVENT_WRITE:
                self._flush(peer)
            if events & selectors.EVENT_READ:
                yield from self._read(peer)

    def wake(self) -> None:
        """End the wait of `poll`, or the next one, from any thread."""
        os.eventfd_write(self._woken, 1)

    def send(self, peer: Peer, frame: dict[str, Any]) -> None:
        """Queue a frame and send without blocking. A peer with too large a backlog is disconnected."""
        if peer not in self.peers:
            return
        peer.unsent += line(frame)
        self._flush(peer)
        if len(peer.unsent) > UNSENT_BYTES:
            self._shut(peer)

    def broadcast(self, frame: dict[str, Any]) -> None:
        for peer in list(self.peers):
            self.send(peer, frame)

    def farewell(self, frame: dict[str, Any]) -> None:
        """Send a last frame from any thread, without waiting: the process ends, and its main thread may be stuck.

        Clients whose connection has not been accepted yet get it as well.
        """
        with contextlib.suppress(OSError):
            while True:
                self.peers.add(Peer(self._listener.accept()[0]))
        for peer in list(self.peers):
            with contextlib.suppress(OSError):
                peer.socket.send(line(frame))

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            peer = Peer(connection)
            self.peers.add(peer)
            self._selector.register(connection, selectors.EVENT_READ, peer)
            if self.greeting is not None:
                self.send(peer, self.greeting)

    def _read(self, peer: Peer) -> Iterator[tuple[Peer, dict[str, Any] | None]]:
        try:
            received = peer.socket.recv(CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        peer.received += received
        *lines, rest = peer.received.split(b"\n")
        peer.received = rest
        for text in lines:
            yield peer, json.loads(text)
        if not received or len(rest) > LINE_BYTES:
            self._close(peer)
            yield peer, None

    def _flush(self, peer: Peer) -> None:
        try:
            sent = peer.socket.send(peer.unsent) if peer.unsent else 0
        except BlockingIOError:
            sent = 0
        except OSError:
            self._shut(peer)
            return
        del peer.unsent[:sent]
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.unsent else 0)
        self._selector.modify(peer.socket, wanted, peer)

    def _shut(self, peer: Peer) -> None:
        """Shut the socket down, so that the next poll reports the peer as disconnected."""
        peer.unsent.clear()
        with contextlib.suppress(OSError):
            peer.socket.shutdown(socket.SHUT_RDWR)

    def _close(self, peer: Peer) -> None:
        self.peers.discard(peer)
        self._deserted = time.monotonic()
        self._selector.unregister(peer.socket)
        peer.socket.close()
