"""The metrics page: right to a parser, made in slices, hard to disturb."""

import asyncio
import contextlib
import random

import pytest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from musterd.coordinator.metrics import http_page
from musterd.coordinator.metrics.histogram import Histogram
from musterd.coordinator.metrics.http_page import (
    CONNECTIONS_MAX,
    HEAD_BYTES_MAX,
    MetricsPage,
    encode,
)


def _big(samples):
    family = CounterMetricFamily("muster_things", "Things.", labels=["name"])
    for number in range(samples):
        family.add_metric([f'g"{number}\n\\'], number)
    return family


async def _get(port, request=b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    await writer.drain()
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.decode(), body


def _serve(families, talk):
    async def run():
        page = MetricsPage(families)
        port = await page.start(host="127.0.0.1", port=0)
        try:
            return await talk(port)
        finally:
            await page.stop()

    return asyncio.run(run())


@pytest.mark.parametrize("samples", [0, 1, 99, 100, 101, 1_000])
def test_a_family_in_pieces_is_the_same_family(samples):
    """Every sample once, one HELP and one TYPE, whatever the size; odd names survive."""
    text = b"".join(encode(_big(samples))).decode()
    assert text.count("# TYPE muster_things_total counter") == 1
    assert text.count("# HELP") == 1
    [family] = text_string_to_metric_families(text)
    assert [s.labels["name"] for s in family.samples] == [f'g"{n}\n\\' for n in range(samples)]


def test_the_loop_turns_while_a_large_page_is_made():
    """A page of 20,000 samples is made in many slices: other work runs in between."""
    turns = 0

    async def other_work():
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def run():
        task = asyncio.create_task(other_work())
        pieces = [piece async for piece in http_page.sliced(lambda: [_big(20_000)])]
        task.cancel()
        return b"".join(pieces)

    text = asyncio.run(run()).decode()
    assert text.count("\n") == 20_002
    assert turns > 10


def test_the_page_is_served_as_prometheus_text():
    """GET answers text with its length; HEAD only the head; a query string is ignored."""
    gauge = GaugeMetricFamily("muster_up", "Is it?", value=1)

    async def talk(port):
        return [
            await _get(port),
            await _get(port, b"HEAD /metrics HTTP/1.1\r\n\r\n"),
            await _get(port, b"GET /metrics?x=1 HTTP/1.1\r\n\r\n"),
        ]

    (head, body), (only_head, nothing), (_, again) = _serve(lambda: [gauge, None], talk)
    assert head.startswith("HTTP/1.1 200 OK")
    assert "text/plain; version=0.0.4" in head
    assert f"Content-Length: {len(body)}" in head
    assert body == again == b"# HELP muster_up Is it?\n# TYPE muster_up gauge\nmuster_up 1.0\n"
    assert (only_head.startswith("HTTP/1.1 200"), nothing) == (True, b"")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"\x16\x03\x01\r\n\r\n", 400),
        (b"x" * (HEAD_BYTES_MAX + 10) + b"\r\n\r\n", 400),
        (b"GET /metrics with spaces HTTP/1.1\r\n\r\n", 400),
    ],
)
def test_what_is_no_scrape_is_refused_and_the_page_lives_on(request_bytes, status):
    """Garbage gets an answer that says what to do, and the next scrape works."""
    gauge = GaugeMetricFamily("muster_up", "Is it?", value=1)

    async def talk(port):
        return await _get(port, request_bytes), await _get(port)

    (head, _), (good, _) = _serve(lambda: [gauge], talk)
    assert head.startswith(f"HTTP/1.1 {status}")
    assert good.startswith("HTTP/1.1 200")


def test_random_bytes_never_stop_the_page():
    """Two hundred connections of noise, some broken off: the page still answers."""
    rng = random.Random(3)

    async def talk(port):
        for _ in range(200):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(rng.randbytes(rng.randrange(300)))
            writer.write_eof()
            await reader.read()
            writer.close()
        return await _get(port)

    head, _ = _serve(lambda: [GaugeMetricFamily("muster_up", "", value=1)], talk)
    assert head.startswith("HTTP/1.1 200")


def test_a_client_that_says_nothing_is_dropped(monkeypatch):
    """An open connection without a request does not live for ever, and is counted."""
    monkeypatch.setattr(http_page, "REQUEST_S", 0.05)

    async def run():
        page = MetricsPage(list)
        port = await page.start(host="127.0.0.1", port=0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()
        await page.stop()
        return page.dropped_total

    assert asyncio.run(run()) == 1


async def _yes():
    return ""


async def _no():
    return "it is broken"


def test_a_check_is_answered_by_status_and_a_line():
    """200 where it holds, 503 with the reason where it does not; the 404 names the paths."""

    async def run():
        page = MetricsPage(list, {"/live": _yes, "/ready": _no})
        port = await page.start(host="127.0.0.1", port=0)
        try:
            paths = (b"/live", b"/ready", b"/else")
            return [await _get(port, b"GET %s HTTP/1.1\r\n\r\n" % path) for path in paths]
        finally:
            await page.stop()

    (live, yes), (ready, no), (missing, paths) = asyncio.run(run())
    assert live.startswith("HTTP/1.1 200")
    assert yes == b"yes\n"
    assert ready.startswith("HTTP/1.1 503")
    assert no == b"no: it is broken\n"
    assert missing.startswith("HTTP/1.1 404")
    assert paths == b"try /metrics, /live, /ready\n"


def test_idle_connections_keep_no_probe_from_its_answer():
    """Three times as many as there is room for: the oldest of them go, and the node stays live."""

    async def run():
        page = MetricsPage(list, {"/live": _yes})
        port = await page.start(host="127.0.0.1", port=0)
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS_MAX)]
        more = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS_MAX)]
        head, _ = await _get(port, b"GET /live HTTP/1.1\r\n\r\n")
        for reader, writer in idle:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
        open_now = len(page.connections)
        for _, writer in more:
            writer.close()
        await page.stop()
        return head, open_now

    head, open_now = asyncio.run(run())
    assert head.startswith("HTTP/1.1 200")
    assert open_now <= CONNECTIONS_MAX


def test_of_connections_that_all_take_no_answer_the_oldest_goes(monkeypatch):
    """Whoever asked and does not read cannot fail a probe either."""
    monkeypatch.setattr(http_page, "CONNECTIONS_MAX", 2)

    async def run():
        page = MetricsPage(lambda: [_big(60_000)], {"/live": _yes})
        port = await page.start(host="127.0.0.1", port=0)
        deaf = [await asyncio.open_connection("127.0.0.1", port, limit=1_024) for _ in range(2)]
        for _, writer in deaf:
            writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        while list(page.connections.values()) != [True, True]:
            await asyncio.sleep(0.001)
        head, _ = await _get(port, b"GET /live HTTP/1.1\r\n\r\n")
        for _, writer in deaf:
            writer.close()
        await page.stop()
        return head

    assert asyncio.run(run()).startswith("HTTP/1.1 200")


def test_histogram_buckets_hold_values_at_their_bound():
    """A bound belongs to its own bucket; buckets are cumulative and end with +Inf."""
    histogram = Histogram((0.5, 1.0))
    for value in (0.5, 0.500001, 1.0, 7.0):
        histogram.observe(value)
    assert histogram.cumulative() == [("0.5", 1), ("1.0", 3), ("+Inf", 4)]
    assert histogram.count == 4
    assert histogram.total == pytest.approx(9.000001)


@pytest.mark.parametrize(
    ("local", "header", "status"),
    [
        (True, b"", b"200"),
        (False, b"", b"401"),
        (False, b"Authorization: Bearer another\r\n", b"401"),
        (False, b"Authorization: Basic 0123456789abcdef\r\n", b"401"),
        (False, b"authorization: bearer 0123456789abcdef\r\n", b"200"),
    ],
)
def test_beyond_loopback_the_page_needs_the_token_and_the_probes_do_not(
    monkeypatch, local, header, status
):
    """Whoever asks /live is nobody in particular, and is not told what is wrong."""

    async def scenario():
        async def live():
            return ""

        async def safe():
            return "shard 3"

        checks = {"/live": live, "/safe-to-restart": safe}
        page = MetricsPage(lambda: (), checks, b"0123456789abcdef")
        monkeypatch.setattr(page, "_is_local", lambda _writer: local)
        port = await page.start(host="127.0.0.1", port=0)
        told = []
        for path in (b"/metrics", b"/live", b"/safe-to-restart"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET " + path + b" HTTP/1.1\r\n" + header + b"\r\n")
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            told.append((head.split(b" ")[1], body))
            writer.close()
        await page.stop()
        return told

    metrics, live, safe = asyncio.run(scenario())
    assert (metrics[0], live) == (status, (b"200", b"yes\n"))
    assert safe == (b"503", b"no: shard 3\n" if status == b"200" else b"no\n")
