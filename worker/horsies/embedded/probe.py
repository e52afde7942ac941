"""Whether a server is there: asked on its socket, because a pid can be a zombie's or somebody else's."""

from __future__ import annotations

import socket
import struct
from enum import Enum
from typing import TYPE_CHECKING

from horsies.embedded.layout import ROLE
from horsies.embedded.unavailable import unavailable

if TYPE_CHECKING:
    from pathlib import Path

_PATIENCE_S = 5.0
_PROTOCOL_3 = 196608
_READY_FOR_QUERY = b"Z\0\0\0\x05I"
_TERMINATE = b"X\0\0\0\x04"
_CANNOT_CONNECT_NOW = b"C57P03"


class Answer(Enum):
    """What a server said to a client that wants in."""

    READY = "ready"
    NOT_YET = "not yet"
    """It starts, recovers or shuts down; or something holds the socket and is silent."""
    NONE = "none"


def ask(path: Path) -> Answer:
    """Knock at the socket as a client would, and leave politely so that the server logs nothing."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_PATIENCE_S)
            connection.connect(str(path))
            connection.sendall(_startup_message())
            return _understand(_reply(connection))
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
        return Answer.NONE
    except (TimeoutError, BlockingIOError, ConnectionError):
        return Answer.NOT_YET
    except PermissionError:
        raise unavailable(f"the embedded server at {path.parent} belongs to another user") from None


def _startup_message() -> bytes:
    parameters = f"user\0{ROLE}\0database\0postgres\0application_name\0horsies knock\0\0".encode()
    return struct.pack("!ii", len(parameters) + 8, _PROTOCOL_3) + parameters


def _reply(connection: socket.socket) -> bytes:
    reply = b""
    while chunk := connection.recv(8192):
        reply += chunk
        if reply.endswith(_READY_FOR_QUERY):
            connection.sendall(_TERMINATE)
            break
    return reply


def _understand(reply: bytes) -> Answer:
    # Any other refusal, such as "too many clients", comes from a server that is up.
    if not reply or _CANNOT_CONNECT_NOW in reply.split(b"\0"):
        return Answer.NOT_YET
    return Answer.READY
