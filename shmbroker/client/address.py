"""What ``connect`` is told about where the broker is: a URL as a value. Opens nothing.

    shm:///path/of/data                          the broker of this data directory, over shared memory
    iggy://user:password@host:port               any broker that speaks Iggy's protocol, over TCP
    iggy://token@host                            the same by a personal access token; the port is 8090 unless given
    iggy+tls://user:password@host?tls_ca_file=/ca.pem&tls_domain=name

User, password and token are percent-encoded. ``repr`` shows neither password nor token.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from shmbroker.errors import ClientMistake

DATA_DEFAULT = "./shmbroker-data"
PORT_DEFAULT = 8090
_TCP_SCHEMES = {"iggy": False, "iggy+tcp": False, "iggy+tls": True}
_TLS_SETTINGS = frozenset({"tls", "tls_ca_file", "tls_domain"})


@dataclass(frozen=True, slots=True)
class LocalAddress:
    """A broker of this host, by its data directory."""

    data: str


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A broker over TCP, and who logs in: by ``token``, or by ``username`` and ``password``."""

    host: str
    port: int = PORT_DEFAULT
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    tls: bool = False
    tls_ca_file: str | None = None
    """Certificates to trust instead of the system's."""
    tls_domain: str | None = None
    """The name that the certificate must have, where it is not ``host``."""

    @property
    def name(self) -> str:
        """``host:port``, without secrets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


Address = LocalAddress | TcpAddress


def address_of(url: str | os.PathLike[str] | None) -> Address:
    """The address that a URL names: None is ``./shmbroker-data``, a path object a data directory. Raises ClientMistake,
    and shows no secret there."""
    if url is None:
        return LocalAddress(DATA_DEFAULT)
    if isinstance(url, os.PathLike):
        return LocalAddress(os.fspath(url))
    if not isinstance(url, str):
        raise ClientMistake(f"url: text or a path, not {type(url).__name__}")
    parts = urlsplit(url)
    if parts.scheme in _TCP_SCHEMES:
        return _tcp_address(url)
    if parts.scheme != "shm":
        raise ClientMistake(
            f"{_without_secrets(url)!r} is no address of a broker: use shm:///path/of/data"
            " or iggy://user:password@host:port"
        )
    if parts.netloc or not parts.path or parts.query or parts.fragment:
        raise ClientMistake(f"{url!r}: an address of a local broker is shm:// and an absolute path, so three slashes")
    return LocalAddress(unquote(parts.path))


def tcp_server(text: str) -> TcpAddress:
    """``host:port`` without credentials. Raises ClientMistake."""
    return _tcp_address(f"iggy://{text}")


def _tcp_address(url: str) -> TcpAddress:
    parts = urlsplit(url)
    try:
        port = PORT_DEFAULT if parts.port is None else parts.port
        settings = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
    except ValueError as fault:
        raise ClientMistake(f"{_without_secrets(url)!r}: {fault}") from None
    if not parts.hostname or parts.path not in ("", "/") or parts.fragment or not _TLS_SETTINGS.issuperset(settings):
        raise ClientMistake(
            f"{_without_secrets(url)!r}: an address over TCP is iggy://user:password@host:port"
            f" (or iggy+tls://), with {', '.join(sorted(_TLS_SETTINGS))} as its settings"
        )
    tls = settings.get("tls", "true" if _TCP_SCHEMES[parts.scheme] else "false")
    if tls not in ("true", "false"):
        raise ClientMistake(f"tls is true or false, not {tls!r}")
    username, password, token = _credentials(parts.username, parts.password)
    return TcpAddress(
        parts.hostname, port, username, password, token, tls == "true", settings.get("tls_ca_file"),
        settings.get("tls_domain"),
    )  # fmt: skip


def _credentials(username: str | None, password: str | None) -> tuple[str | None, str | None, str | None]:
    """User name, password, token."""
    if password is not None:
        return unquote(username or ""), unquote(password), None
    return None, None, unquote(username) if username else None


def _without_secrets(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}...@{rest.rpartition('@')[2]}" if "@" in rest else url
