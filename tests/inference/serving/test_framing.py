"""Where a request ends, by the rules of RFC 9112: whatever two servers could read differently."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demitasse.inference.serving.framing import (
    MAX_FIELDS,
    ChunkDecoder,
    HTTPError,
    parse_head,
)

FIRST = b"POST /v2 HTTP/1.1"


def head(*lines, first=FIRST, host=b"Host: a"):
    return b"\r\n".join([first, *([host] if host else []), *lines, b"", b""])


@pytest.mark.parametrize(
    ("lines", "length"),
    [
        ([], 0),
        ([b"Content-Length: 0"], 0),
        ([b"Content-Length:12"], 12),
        ([b"Content-Length: \t 007 \t"], 7),
        ([b"content-LENGTH: 5"], 5),
        ([b"Transfer-Encoding: chunked"], None),
        ([b"Transfer-encoding: CHUNKED"], None),
        ([b"Expect: 100-Continue"], 0),
        ([b"X: \xff\tand so on", b"Y:"], 0),
    ],
)
def test_a_head_says_how_long_the_body_is(lines, length):
    assert parse_head(head(*lines)).length == length


@pytest.mark.parametrize(
    ("target", "origin"),
    [
        (b"http://a/v2/models", b"/v2/models"),
        (b"HTTPS://a:80/x?y=1", b"/x?y=1"),
        (b"http://a", b"/"),
        (b"http://a?x", b"/?x"),
        (b"/v2", b"/v2"),
        (b"//v2", b"//v2"),
    ],
)
def test_a_target_in_absolute_form_becomes_a_path(target, origin):
    parsed = parse_head(head(first=b"GET " + target + b" HTTP/1.1"))

    assert parsed.target == origin.decode()


@pytest.mark.parametrize("host", [b"a", b"a:80", b"", b"[::1]:80", b"127.0.0.1", b"A-b.c_d"])
def test_hosts_are_accepted(host):
    parse_head(head(host=b"Host: " + host))


@pytest.mark.parametrize(
    ("content", "status"),
    [
        # two lengths
        (head(b"Content-Length: 5", b"Transfer-Encoding: chunked"), 400),
        (head(b"Transfer-Encoding: chunked", b"Content-Length: 5"), 400),
        (head(b"Content-Length: 5", b"Content-Length: 6"), 400),
        (head(b"Content-Length: 5", b"Content-Length: 5"), 400),
        (head(b"Content-Length: 5, 5"), 400),
        # lengths that are none
        (head(b"Content-Length: -1"), 400),
        (head(b"Content-Length: +1"), 400),
        (head(b"Content-Length: 0x10"), 400),
        (head(b"Content-Length: 1_0"), 400),
        (head(b"Content-Length: 1e3"), 400),
        (head(b"Content-Length: 5 5"), 400),
        (head(b"Content-Length:"), 400),
        (head(b"Content-Length: \xb2"), 400),
        (head(b"Content-Length: " + b"9" * 19), 400),
        (head(b"Content-Length: " + b"9" * 5000), 400),
        # codings
        (head(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"), 400),
        (head(b"Transfer-Encoding: chunked, chunked"), 501),
        (head(b"Transfer-Encoding: gzip, chunked"), 501),
        (head(b"Transfer-Encoding: chunked, gzip"), 400),
        (head(b"Transfer-Encoding: identity"), 400),
        (head(b"Transfer-Encoding: xchunked"), 501),
        (head(b"Transfer-Encoding: chunked;q=1"), 400),
        (head(b"Transfer-Encoding: \x0bchunked"), 400),
        (head(b"Transfer-Encoding:"), 400),
        (head(b"Transfer-Encoding: chunked", first=b"POST / HTTP/1.0"), 400),
        # lines
        (head(b"X: a", b" folded"), 400),
        (head(b"X: a", b"\tfolded"), 400),
        (head(b" X: a"), 400),
        (head(b"Content-Length : 5"), 400),
        (head(b"Content-Length\t: 5"), 400),
        (head(b"X\x00: 5"), 400),
        (head(b"X: a\rY: b"), 400),
        (head(b"X: a\nContent-Length: 5"), 400),
        (head(b"X: a\x00b"), 400),
        (head(b"X: \x7f"), 400),
        (head(b": empty"), 400),
        (head(b"no colon"), 400),
        (head(b"X(: 5"), 400),
        (head(*[b"X: 1"] * MAX_FIELDS), 431),
        # the request line
        (head(first=b"POST  /v2 HTTP/1.1"), 400),
        (head(first=b"POST\t/v2 HTTP/1.1"), 400),
        (head(first=b" POST /v2 HTTP/1.1"), 400),
        (head(first=b"POST /v2 HTTP/1.1 "), 400),
        (head(first=b"POST /v2 x HTTP/1.1"), 400),
        (head(first=b"POST /v2"), 400),
        (head(first=b"P(ST /v2 HTTP/1.1"), 400),
        (head(first=b"POST /v\xc3\xbc HTTP/1.1"), 400),
        (head(first=b"POST /v2 http/1.1"), 400),
        (head(first=b"POST /v2 HTTP/11"), 400),
        (head(first=b"POST /v2 HTTP/1.10"), 400),
        (head(first=b"POST /v2 HTTP/2.0"), 400),
        (head(first=b"POST /v2 HTTP/0.9"), 400),
        (head(first=b"POST /v2 HTTP/1.2"), 400),
        (head(first=b"PRI * HTTP/2.0"), 400),
        (head(first=b"POST v2 HTTP/1.1"), 400),
        (head(first=b"POST /v2#x HTTP/1.1"), 400),
        (head(first=b"CONNECT a:80 HTTP/1.1"), 400),
        (head(first=b"GET * HTTP/1.1"), 400),
        (head(first=b"GET ftp://a/ HTTP/1.1"), 400),
        (head(first=b"GET http:///v2 HTTP/1.1"), 400),
        (head(first=b"GET http://a@b/v2 HTTP/1.1"), 400),
        # the host
        (head(host=b""), 400),
        (head(b"Host: a"), 400),
        (head(host=b"Host: a b"), 400),
        (head(host=b"Host: a, b"), 400),
        (head(host=b"Host: a/b"), 400),
        (head(host=b"Host: a:b"), 400),
        (head(host=b"Host: a@b"), 400),
        # expectations
        (head(b"Expect: 200-ok"), 417),
    ],
)
def test_a_head_that_two_servers_could_read_differently_is_refused(content, status):
    with pytest.raises(HTTPError) as caught:
        parse_head(content)

    assert caught.value.status == status


def decoded(content, step=None):
    """Decode a body that arrives in pieces; return the data and what is left."""
    decoder, incoming, data = ChunkDecoder(), bytearray(), b""
    step = step or len(content)
    for start in range(0, len(content), step):
        incoming += content[start : start + step]
        while incoming and not decoder.done:
            before = len(incoming)
            data += decoder.decode(incoming, 7)
            if len(incoming) == before:
                break
    return data, bytes(incoming), decoder.done


CHUNKED = b'5\r\nhello\r\n00a;x="y";z\r\n, world...\r\n0 ; last\r\nTrailer: 1\r\n\r\nGET /'


@pytest.mark.parametrize("step", [1, 2, 3, 5, 8, 100])
def test_chunks_are_decoded_however_they_arrive(step):
    data, left, done = decoded(CHUNKED, step)

    assert data == b"hello, world..."
    assert done
    assert b"GET /".startswith(left)


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=10), st.integers(1, 50))
def test_what_is_chunked_comes_back(parts, step):
    content = b"".join(b"%X\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"

    assert decoded(content, step) == (b"".join(parts), b"", True)


@pytest.mark.parametrize(
    "content",
    [
        b"5\nhello\r\n0\r\n\r\n",
        b"5\r\nhello\n0\r\n\r\n",
        b"5\r\nhelloX\r\n0\r\n\r\n",
        b"5\r\nhello\r\r\n0\r\n\r\n",
        b"-5\r\nhello",
        b"+5\r\nhello",
        b"0x5\r\nhello",
        b"5 \r\nhello",
        b" 5\r\nhello",
        b"\r\n",
        b"g\r\n",
        b"5_0\r\n",
        b"1" * 17 + b"\r\n",
        b"1" * 300,
        b"5;" + b"x" * 300 + b"\r\nhello",
        b"5;a\x00\r\nhello",
        b"5;a\rb\r\nhello",
        b"5;a\nb\r\nhello",
        b"0\r\nContent-Length : 5\r\n\r\n",
        b"0\r\n folded\r\n\r\n",
        b"0\r\nno colon\r\n\r\n",
        b"0\r\nX: a\n\r\n\r\n",
        b"0\r\n" + b"X: abc\r\n" * 10_000 + b"\r\n",
        b"0\r\nX: " + b"a" * 20_000,
        (b"1;" + b"x" * 200 + b"\r\n \r\n") * 6000,
    ],
)
@pytest.mark.parametrize("step", [1000, 100_000])
def test_chunks_that_two_servers_could_read_differently_are_refused(content, step):
    with pytest.raises(HTTPError):
        decoded(content, step)


@given(st.binary(max_size=300), st.integers(1, 50))
def test_whatever_comes_as_chunks_is_read_or_refused(content, step):
    try:
        decoded(content, step)
    except HTTPError:
        return


@given(st.binary(max_size=300))
def test_whatever_comes_as_a_head_is_read_or_refused(content):
    try:
        parse_head(content + b"\r\n\r\n")
    except HTTPError:
        return
