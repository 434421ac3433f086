"""The server behind the studio: loopback only, with a token, and only for the page that it served itself.

Any web page in a browser can send requests to this machine's ports. None of them gets through here: a request must name
this server as its host (which a foreign DNS name that points here does not), must not come from another origin, and
must carry the token. The token is random, new at every start, and appears only in the address that was printed and in a
file for the browser. No answer gives permission to other origins.
"""

from __future__ import annotations

import hmac
import html
import json
import logging
import secrets
import shutil
import tempfile
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ..documents import object_at, parse
from ..errors import AllfoldError, UsageError
from ..learn.course import find_folder
from ..view.html import bundle, page_as_html, policy
from .answers import Answers
from .edit import Limits
from .lessons import Lessons
from .routes import POSTED, Api

ADDRESS = "127.0.0.1"
TOKEN_HEADER = "X-Allfold-Token"
_MOST_BODY = 2**20
_MOST_QUERY = 2048
_LOG = logging.getLogger("allfold.studio")


class Studio(ThreadingHTTPServer):
    """One studio. `url` is what to open; `folder` is that of the course."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port: int = 0, limits: Limits | None = None, folder: str | None = None) -> None:
        self.token = secrets.token_urlsafe(24)
        self.answers = Answers(limits or Limits())
        self.routes = Api(self.answers, Lessons(find_folder(folder)))
        self.script = bundle()[0]
        self._redirect: Path | None = None
        try:
            super().__init__((ADDRESS, port), _Request)
        except OSError as error:
            raise UsageError(
                f"port {port} of {ADDRESS} cannot be used: {error.strerror}; --port names another"
            ) from None
        except OverflowError:
            raise UsageError(f"--port {port}: expected a number from 0 (any that is free) to 65535") from None

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def hosts(self) -> tuple[str, str]:
        return f"{ADDRESS}:{self.port}", f"localhost:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.port}/?token={self.token}"

    def redirect_page(self, place: str) -> str:
        """The address of a file that sends the browser to `url` and `place`; only this user can read it.

        A browser's command line can be read by all users of the machine, so the token must not be in it. The file is
        removed when the browser asks for the page, and at the end.
        """
        try:  # in the home folder: browsers that are snaps see no other
            folder = tempfile.mkdtemp(prefix="allfold-studio-", dir=Path.home())
        except (OSError, RuntimeError):
            folder = tempfile.mkdtemp(prefix="allfold-studio-")
        self._redirect = Path(folder)
        file = self._redirect / "open.html"
        file.touch(mode=0o600)
        url = html.escape(self.url + place)
        file.write_text(
            f'<!DOCTYPE html><meta charset="utf-8"><title>allfold studio</title>\n'
            f'<meta http-equiv="refresh" content="0; url={url}"><a href="{url}">Open the studio</a>\n',
            encoding="utf-8",
        )
        return file.as_uri()

    def remove_redirect_page(self) -> None:
        if self._redirect is not None:
            shutil.rmtree(self._redirect, ignore_errors=True)

    def is_token(self, given: str | None) -> bool:
        return given is not None and hmac.compare_digest(given.encode(), self.token.encode())

    def server_close(self) -> None:
        super().server_close()
        self.remove_redirect_page()
        self.answers.workers.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        _LOG.debug("a connection ended early", exc_info=True)  # a browser that closed its tab


class _Refusal(Exception):
    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Request(BaseHTTPRequestHandler):
    server: Studio
    server_version = "allfold"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 120  # seconds that a connection may be silent

    def do_GET(self) -> None:
        self._respond(self._get)

    def do_POST(self) -> None:
        self._respond(self._post)

    # Who may ask -----------------------------------------------------------------------------------------------------

    def _check_sender(self) -> None:
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        if host not in self.server.hosts:
            raise _Refusal(HTTPStatus.FORBIDDEN, f"this is {self.server.hosts[0]}, not {host[:100]!r}")
        if origin is not None and origin not in {f"http://{own}" for own in self.server.hosts}:
            raise _Refusal(HTTPStatus.FORBIDDEN, f"requests of {origin[:100]} are refused; only this page may ask")
        # A link to the page itself may be followed from anywhere, for instance from a terminal in a browser: it has the
        # token.
        follows = self.headers.get("Sec-Fetch-Dest") == "document" and urlsplit(self.path).path == "/"
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin") and not follows:
            raise _Refusal(HTTPStatus.FORBIDDEN, "requests of other pages are refused")

    def _check_token(self, given: str | None) -> None:
        if not self.server.is_token(given):
            message = "the token is missing or wrong; open the address that allfold studio printed"
            raise _Refusal(HTTPStatus.FORBIDDEN, message)

    # What is asked ---------------------------------------------------------------------------------------------------

    def _get(self) -> tuple[str, bytes]:
        parts = urlsplit(self.path)
        if len(parts.query) > _MOST_QUERY:
            raise _Refusal(HTTPStatus.REQUEST_URI_TOO_LONG, f"a query may have {_MOST_QUERY} characters")
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        if parts.path == "/":
            self._check_token(query.get("token"))
            self.server.remove_redirect_page()
            return "text/html", page_as_html(self.server.answers.page(self.server.token)).encode()
        if not parts.path.startswith("/api/"):
            raise _Refusal(HTTPStatus.NOT_FOUND, f"there is nothing at {parts.path[:100]}")
        self._check_token(self.headers.get(TOKEN_HEADER))
        found = self.server.routes.get(parts.path, query)
        if found is None:
            raise _Refusal(HTTPStatus.NOT_FOUND, f"there is nothing at {parts.path[:100]}")
        return "application/json", found

    def _post(self) -> tuple[str, bytes]:
        # The body is read before anything is answered: a connection with an unread body cannot be reused.
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _MOST_BODY:
            self.close_connection = True
            raise _Refusal(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request needs a length, of at most {_MOST_BODY} bytes"
            )
        body = self.rfile.read(int(length))
        path = urlsplit(self.path).path
        if path not in POSTED:
            raise _Refusal(HTTPStatus.NOT_FOUND, f"there is nothing at {path[:100]}")
        self._check_token(self.headers.get(TOKEN_HEADER))
        if self.headers.get_content_type() != "application/json":
            raise _Refusal(HTTPStatus.BAD_REQUEST, "expected application/json")
        request = object_at(parse(body), "the request")
        return "application/json", self.server.routes.post(path, request)

    # The answer ------------------------------------------------------------------------------------------------------

    def _respond(self, work: Any) -> None:
        status = HTTPStatus.OK
        try:
            self._check_sender()
            kind, content = work()
        except _Refusal as refusal:
            status, kind, content = refusal.status, "application/json", _error(str(refusal))
        except AllfoldError as error:
            status, kind = HTTPStatus.BAD_REQUEST, "application/json"
            content = _error(str(error), getattr(error, "line", None))
        except Exception as error:
            _LOG.exception("a request could not be answered")
            status, kind = HTTPStatus.INTERNAL_SERVER_ERROR, "application/json"
            content = _error(f"the studio failed: {type(error).__name__}: {error}")
        if status != HTTPStatus.OK:
            self.close_connection = True  # an unread body may follow
        self.send_response(status)
        for name, value in self._headers(kind, len(content)).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _headers(self, kind: str, length: int) -> dict[str, str]:
        return {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(length),
            "Content-Security-Policy": policy(self.server.script, "'self'") + "; frame-ancestors 'none'",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cache-Control": "no-store",
            **({"Connection": "close"} if self.close_connection else {}),
        }

    def log_message(self, format: str, *arguments: Any) -> None:
        _LOG.debug(format, *arguments)


def _error(message: str, line: int | None = None) -> bytes:
    return json.dumps({"error": {"message": message, **({"line": line} if line is not None else {})}}).encode()
