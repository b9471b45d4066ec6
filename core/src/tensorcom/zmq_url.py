"""ZMQ URLs: `<scheme>[+<transport>]://<address>[?option=value&…][#topic]`.

Owns the notation: schemes, transports, brace expansion, options and topics. Opens nothing and
imports no ZeroMQ.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import braceexpand

from tensorcom.arguments import check_share
from tensorcom.errors import ZmqUrlError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

SCHEMES: Mapping[str, tuple[str, bool]] = {
    # scheme: (socket kind, binds)
    "zpush": ("push", False),
    "zpull": ("pull", True),
    "zpub": ("pub", True),
    "zsub": ("sub", False),
    "zrpush": ("push", True),
    "zrpull": ("pull", False),
    "zrpub": ("pub", False),
    "zrsub": ("sub", True),
}
TRANSPORTS = ("tcp", "ipc", "inproc")
IPC_PATH_LIMIT = 107
MAX_URLS = 4096
MAX_BRACE_DEPTH = 32

_SUFFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def _size(text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,19})(|k|M|G|Ki|Mi|Gi)", text)
    size = int(match[1]) * _SUFFIXES[match[2]] if match else 0
    if not 0 < size < 2**63:
        raise ValueError("a positive 63-bit integer, optionally with k, M, G, Ki, Mi or Gi")
    return size


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) == 0:
        raise ValueError("a positive integer")
    return int(text)


def _millis(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise ValueError("milliseconds as an integer from 0")
    return int(text)


def _seconds(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) or float(text) >= 1e9:
        raise ValueError("seconds as a number from 0")
    return float(text)


def _switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("0 or 1")
    return text == "1"


def _text(text: str) -> str:
    if not text:
        raise ValueError("a path")
    return text


OPTIONS: Mapping[str, Callable[[str], int | float | bool | str]] = {
    "hwm": _count,
    "hwm_bytes": _size,
    "max_frame_bytes": _size,
    "timeout_s": _seconds,
    "linger_ms": _millis,
    "heartbeat_s": _seconds,
    "nodrop": _switch,
    "curve_key": _text,
    "curve_server_key": _text,
}


@dataclass(frozen=True, slots=True)
class ZmqUrl:
    """A parsed ZMQ URL.

    Attributes:
        scheme: one of SCHEMES, such as "zpub".
        transport: one of TRANSPORTS.
        address: `host:port` for tcp, a path for ipc, a name for inproc; percent-decoded.
        topic: topic to publish under or to subscribe to, None for none or all.
        options: options given in the URL, by name, converted to their types.
    """

    scheme: str
    transport: str
    address: str
    topic: str | None = None
    options: Mapping[str, int | float | bool | str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """Socket kind: "push", "pull", "pub" or "sub"."""
        return SCHEMES[self.scheme][0]

    @property
    def binds(self) -> bool:
        """Whether this end binds the address; the other end connects."""
        return SCHEMES[self.scheme][1]

    @property
    def sends(self) -> bool:
        """Whether this end sends."""
        return self.kind in ("push", "pub")

    @property
    def endpoint(self) -> str:
        """The address as ZeroMQ writes it, such as `tcp://127.0.0.1:7880`."""
        return f"{self.transport}://{self.address}"

    def __str__(self) -> str:
        """Return a URL that parses to an equal object."""
        safe = "/:[]*,;=@!$&'()~ "
        plus = "" if self.transport == "tcp" else f"+{self.transport}"
        text = f"{self.scheme}{plus}://{quote(self.address, safe=safe)}"
        if self.options:
            pairs = (f"{k}={quote(_option_text(v), safe='/:~')}" for k, v in self.options.items())
            text += "?" + "&".join(pairs)
        if self.topic is not None:
            text += f"#{quote(self.topic, safe=safe + '?')}"
        return text


def _option_text(value: float | str) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        return format(value, ".9f").rstrip("0").rstrip(".")
    return str(value)


def expand_urls(urls: str | Iterable[str], *, expand: bool = True) -> list[str]:
    """Expand Bash-style braces: `zsub://host:788{0..3}` is four URLs.

    Args:
        urls: one URL or several.
        expand: False takes braces literally.

    Raises:
        ZmqUrlError: braces are unbalanced, or there are no URLs, or more than 4096.
    """
    given = [urls] if isinstance(urls, str) else list(urls)
    result: list[str] = []
    for url in given:
        if not isinstance(url, str):
            raise ZmqUrlError(f"expected a string, found {type(url).__name__}", url=repr(url))
        if expand and len(result) + _count_expansions(url) > MAX_URLS:
            raise ZmqUrlError(f"expands to more than {MAX_URLS} URLs", url=url)
        try:
            result += braceexpand.braceexpand(url, escape=False) if expand else [url]
        except ValueError as exc:
            raise ZmqUrlError(f"braces do not expand: {exc}", url=url) from exc
        if len(result) > MAX_URLS:
            raise ZmqUrlError(f"expands to more than {MAX_URLS} URLs", url=url)
    if not result:
        raise ZmqUrlError("no URL was given")
    return result


def _count_range(text: str) -> int:
    """Return the length of a range as `1..9` or `1..9..2`, 0 if it is none."""
    span = re.fullmatch(r"(-?\d{1,99})\.\.(-?\d{1,99})(?:\.\.-?(\d{1,99}))?", text)
    if span is None:
        return 0
    return abs(int(span[1]) - int(span[2])) // (int(span[3] or 1) or 1) + 1


def _count_expansions(url: str) -> int:
    """Return how many URLs the braces make at most: braceexpand would make them all in memory."""
    # For each open brace: alternatives so far, expansions of the present one, where it starts.
    stack: list[tuple[int, int, int]] = [(0, 1, 0)]
    for position, character in enumerate(url):
        done, present, start = stack[-1]
        if character == "{":
            if len(stack) > MAX_BRACE_DEPTH:
                raise ZmqUrlError(f"braces are more than {MAX_BRACE_DEPTH} deep", url=url)
            stack.append((0, 1, position + 1))
        elif character == "," and len(stack) > 1:
            stack[-1] = (done + present, 1, start)
        elif character == "}" and len(stack) > 1:
            stack.pop()
            inner = _count_range(url[start:position]) or done + present
            outer_done, outer, outer_start = stack[-1]
            # More than enough is enough: the numbers stay small.
            stack[-1] = (outer_done, min(outer * inner, MAX_URLS + 1), outer_start)
    return stack[0][1]


def parse_url(url: str) -> ZmqUrl:
    """Parse one URL; braces must have been expanded by `expand_urls`.

    Percent-escapes in address and topic are decoded, so `%23` is a `#` and `%3F` a `?`. In ipc
    addresses a `?` that no known option follows belongs to the path, and so does a `#` where the
    scheme has no topics (push and pull).

    Raises:
        ZmqUrlError: scheme, transport, address, option or topic is not understood.
    """
    try:
        url.encode()
    except UnicodeEncodeError as exc:
        raise ZmqUrlError("holds characters that UTF-8 has not", url=repr(url)) from exc
    head, separator, rest = url.partition("://")
    if not separator:
        raise ZmqUrlError("has no '://'; expected <scheme>[+<transport>]://<address>", url=url)
    scheme, plus, transport = head.partition("+")
    if scheme not in SCHEMES:
        raise ZmqUrlError(f"scheme {scheme!r} is not one of {', '.join(SCHEMES)}", url=url)
    transport = transport if plus else "tcp"
    if transport not in TRANSPORTS:
        raise ZmqUrlError(f"transport {transport!r} is not one of {', '.join(TRANSPORTS)}", url=url)
    rest, topic = _split_topic(url, rest, scheme, transport)
    rest, options = _split_options(url, rest, transport)
    address = _unquote(url, rest)
    if transport == "tcp":
        _check_tcp(url, address, binds=SCHEMES[scheme][1])
    else:
        _check_name(url, address, transport)
    return ZmqUrl(scheme, transport, address, topic, options)


def receiving_urls(urls: str | Iterable[str]) -> list[ZmqUrl]:
    """Parse the URLs of what receives, braces expanded; at least one.

    Raises:
        ZmqUrlError: one is not understood, or sends.
    """
    parsed = [parse_url(text) for text in expand_urls(urls)]
    for url in parsed:
        if url.sends:
            raise ZmqUrlError(f"{url.scheme} sends; a data set receives", url=str(url))
    return parsed


def share_urls(
    urls: Sequence[ZmqUrl], shard: tuple[int, int]
) -> tuple[list[ZmqUrl], tuple[int, int] | None]:
    """Return what one of several readers of a stream opens.

    Pulling readers share by nature, and one that binds has what comes to it. Of publishers, each
    reader takes some, or a part of the messages of all where there are too few.

    Args:
        urls: of the stream, at least one.
        shard: number and count of readers.

    Returns:
        The reader's URLs, and what `Connection` takes as `split`.

    Raises:
        ValueError: `shard` is not a number from 0 and the count over it.
    """
    reader, readers = check_share("shard", shard)
    if readers == 1 or urls[0].kind == "pull" or any(url.binds for url in urls):
        return list(urls), None
    if len(urls) >= readers:
        return list(urls[reader::readers]), None
    return list(urls), (reader, readers)


def _unquote(url: str, text: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError as exc:
        raise ZmqUrlError(f"percent-escapes are not UTF-8: {exc.reason}", url=url) from exc


def _split_topic(url: str, rest: str, scheme: str, transport: str) -> tuple[str, str | None]:
    has_topics = SCHEMES[scheme][0] in ("pub", "sub")
    if "#" not in rest or (transport != "tcp" and not has_topics):
        return rest, None
    rest, _, fragment = rest.rpartition("#") if transport != "tcp" else rest.partition("#")
    if not has_topics:
        raise ZmqUrlError(f"{scheme} has no topics; remove '#{fragment}'", url=url)
    topic = _unquote(url, fragment)
    if not topic:
        raise ZmqUrlError("topic after '#' is empty; leave '#' out to receive all", url=url)
    return rest, topic


def _split_options(
    url: str, rest: str, transport: str
) -> tuple[str, dict[str, int | float | bool | str]]:
    base, mark, query = rest.rpartition("?")
    if not mark:
        return rest, {}
    pairs = [pair.partition("=") for pair in query.split("&")]
    if transport != "tcp" and not any(name in OPTIONS and eq for name, eq, _ in pairs):
        return rest, {}
    options: dict[str, int | float | bool | str] = {}
    for name, eq, value in pairs:
        if name not in OPTIONS or not eq:
            raise ZmqUrlError(f"option {name!r} is not one of {', '.join(OPTIONS)}", url=url)
        if name in options:
            raise ZmqUrlError(f"option {name!r} is given twice", url=url)
        try:
            options[name] = OPTIONS[name](_unquote(url, value))
        except ValueError as exc:
            if isinstance(exc, ZmqUrlError):
                raise
            raise ZmqUrlError(f"option {name}={value!r}: expected {exc}", url=url) from exc
    return base, options


def _check_tcp(url: str, address: str, *, binds: bool) -> None:
    host, colon, port = address.rpartition(":")
    if not colon or not host:
        raise ZmqUrlError(f"address {address!r} is not host:port", url=url)
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ZmqUrlError(f"IPv6 address {host!r} needs brackets: [{host}]:{port}", url=url)
    if not re.fullmatch(r"\[[0-9A-Fa-f:.]+(%[\w.-]+)?\]|[\w.*-]+", host, re.ASCII):
        raise ZmqUrlError(f"host {host!r} is no host name or IP address", url=url)
    if port == "*":
        port = "0"
    if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise ZmqUrlError(f"port {port!r} is not a number from 0 to 65535", url=url)
    if not binds and (int(port) == 0 or host == "*"):
        raise ZmqUrlError("cannot connect to a wildcard; name the host and port", url=url)


def _check_name(url: str, address: str, transport: str) -> None:
    if not address or "\0" in address:
        raise ZmqUrlError(f"{transport} address is empty or holds NUL", url=url)
    size = len(address.encode("utf-8", "surrogateescape"))
    if transport == "ipc" and size > IPC_PATH_LIMIT:
        raise ZmqUrlError(
            f"ipc path of {size} bytes exceeds the system's {IPC_PATH_LIMIT}; "
            "use a shorter path or the abstract form ipc://@name",
            url=url,
        )
    if transport == "inproc" and size > 256:
        raise ZmqUrlError(f"inproc name of {size} bytes exceeds 256", url=url)
