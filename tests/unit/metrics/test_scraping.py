"""Scraping real endpoints: what a pod does wrong is its own affair."""

from __future__ import annotations

import asyncio
import gzip
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from metric_endpoints import Endpoints, Handler, cut, dripping, endless, hang, not_http, page
from own_authority import vouched

from modelyard.metrics.endpoints import scrape
from modelyard.metrics.endpoints.scrape import CONCURRENCY, MOST_PAGES, Scraper
from modelyard.metrics.vocabulary.pages import MetricsEndpoint, Page, Scrape


@pytest.fixture
async def endpoints() -> AsyncIterator[Endpoints]:
    async with Endpoints() as served:
        yield served


def of(ip: str, port: int, uri: str = "/metrics") -> Scrape:
    return Scrape(MetricsEndpoint(f"uid-{ip}", "", f"pod-{ip}", ip), port, uri)


def load(page: Page | str) -> list[float]:
    assert isinstance(page, Page), page
    return [sample.value for sample in page.samples]


async def refuse(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def compressed(writer: asyncio.StreamWriter) -> None:
    body = gzip.compress(b"load 1\n")
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()


FAULTS: list[tuple[Handler, str]] = [
    (hang, "no complete answer within"),
    (dripping, "no complete answer within"),
    (cut, "GET http"),
    (refuse, "GET http"),
    (endless, "larger than 200000 bytes"),
    (not_http, "GET http"),
    (page("load 9\n", "503 Service Unavailable"), "HTTP status 503"),
    (page("load 9\n", "404 Not Found"), "HTTP status 404"),
    (page("", "302 Found", "Location: http://127.0.0.1:1/secret\r\n"), "redirects are not followed"),
    (compressed, "'gzip'"),
]


async def test_faults_hurt_only_their_own_pod(endpoints: Endpoints) -> None:
    good = [await endpoints.add(page(f"# TYPE load gauge\nload {n}\n")) for n in range(3)]
    bad = [await endpoints.add(handler) for handler, _ in FAULTS]
    wanted = {of(ip, endpoints.port): {"load"} for ip in (*bad, *good)}
    async with Scraper(seconds=8.0, total=60.0, max_body=200_000) as scraper:
        pages = await scraper.scrape(wanted)
    assert [load(pages[of(ip, endpoints.port)]) for ip in good] == [[0.0], [1.0], [2.0]]
    for ip, (_, why) in zip(bad, FAULTS, strict=True):
        said = pages[of(ip, endpoints.port)]
        assert isinstance(said, str)
        assert why in said


async def test_a_hostile_page_spoils_nothing_beside_it(endpoints: Endpoints) -> None:
    lines = {
        "too many lines": "load 1\n" * 200_000,
        "a line of 40 kB": 'load{a="' + '\\"' * 20_000 + '"} 1\n',
        "a line of 400 kB": "load{" + ",".join(f'a{n}="b"' for n in range(45_000)) + "} 1\n",
        "no UTF-8, no number": 'load{a="\udcff"} x\n',
        "the same series twice": "load 1\nload 2\n",
    }
    bad = [await endpoints.add(page(text)) for text in lines.values()]
    good = [await endpoints.add(page(f"# TYPE load gauge\nload {n}\n")) for n in range(3)]
    async with Scraper(seconds=20.0, total=60.0) as scraper:
        pages = await scraper.scrape({of(ip, endpoints.port): {"load"} for ip in (*bad, *good)})
    assert [load(pages[of(ip, endpoints.port)]) for ip in good] == [[0.0], [1.0], [2.0]]
    whole, *others = (pages[of(ip, endpoints.port)] for ip in bad)
    assert "more than 100000 lines" in str(whole)
    for said in others:
        assert isinstance(said, Page)
        assert (said.samples, list(said.problems)) == ([], ["load"])


async def test_pages_that_take_long_to_read_wait_for_each_other_only(endpoints: Endpoints) -> None:
    line = "{" + ",".join(f'a{n}="b"' for n in range(200)) + ',s="%d"} 1\n'
    costly = "".join("load" + line % n for n in range(250))
    bad = [await endpoints.add(page(costly)) for _ in range(20)]
    good = await endpoints.add(page("load 1\n"))
    wanted = {of(ip, endpoints.port): {"load"} for ip in (*bad, good)}
    async with Scraper(total=1.0) as scraper:
        # Every look finds out some more of them; alone, they would fill every look.
        while not isinstance(found := (await scraper.scrape(wanted))[of(good, endpoints.port)], Page):
            assert "not reached" in found
    assert load(found) == [1.0]


async def test_a_pod_without_an_address_or_a_listener_is_missing(endpoints: Endpoints) -> None:
    await endpoints.add(page("load 1\n"))
    async with Scraper(seconds=1.0) as scraper:
        nowhere, closed = of("", endpoints.port), of("127.1.2.3", endpoints.port)
        pages = await scraper.scrape({nowhere: {"load"}, closed: {"load"}})
    assert pages[nowhere] == "the pod has no address"
    assert f"127.1.2.3:{endpoints.port}" in str(pages[closed])


async def test_healing_and_connections_kept(endpoints: Endpoints) -> None:
    ip = await endpoints.add(page("load 1\n"))
    wanted = {of(ip, endpoints.port, "/custom?x=1"): {"load"}}
    async with Scraper(seconds=60.0, total=60.0) as scraper:
        (first,) = (await scraper.scrape(wanted)).values()
        endpoints[ip] = hang
        scraper.seconds = 0.5
        (second,) = (await scraper.scrape(wanted)).values()
        scraper.seconds = 60.0
        endpoints[ip] = page("load 3\n")
        (third,) = (await scraper.scrape(wanted)).values()
    assert (load(first), load(third)) == ([1.0], [3.0])
    assert isinstance(second, str)
    assert endpoints.asked[0] == f"{ip} GET /custom?x=1 HTTP/1.1"


async def test_many_hanging_pods_do_not_keep_the_others_waiting(endpoints: Endpoints) -> None:
    hanging = [await endpoints.add(hang) for _ in range(6)]
    good = await endpoints.add(page("load 1\n"))
    wanted = {of(ip, endpoints.port): {"load"} for ip in (*hanging, good)}
    async with Scraper(seconds=30, total=6.0) as scraper:
        pages = await scraper.scrape(wanted)
    assert load(pages[of(good, endpoints.port)]) == [1.0]
    assert all("not reached within the 6 s" in str(pages[of(ip, endpoints.port)]) for ip in hanging)


def many(ip: str, port: int, namespace: str = "") -> list[Scrape]:
    """More pods than there are places, all behind one address."""
    pods = (MetricsEndpoint(f"uid-{n}-{ip}", "", f"pod-{n}", ip, namespace) for n in range(2 * CONCURRENCY))
    return [Scrape(pod, port, "/metrics") for pod in pods]


async def test_a_namespace_of_hanging_pods_has_its_share_of_the_places(endpoints: Endpoints) -> None:
    bad, good = await endpoints.add(hang), await endpoints.add(page("load 1\n"))
    healthy = many(good, endpoints.port, "shop")[:20]
    wanted = dict.fromkeys([*many(bad, endpoints.port, "hostile"), *healthy], ("load",))
    async with Scraper(seconds=60, total=8.0) as scraper:
        pages = await scraper.scrape(wanted)
    assert {load(pages[one])[0] for one in healthy} == {1.0}


async def test_pods_that_answer_in_the_last_moment_wait_in_a_queue_of_their_own(
    endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrape, "SLUGGISH", 0.05)

    async def late(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.1)
        await page("load 1\n")(writer)

    bad, good = await endpoints.add(late), of(await endpoints.add(page("load 1\n")), endpoints.port)
    sluggish = dict.fromkeys(many(bad, endpoints.port), ("load",))
    async with Scraper(seconds=60, total=60) as scraper:
        pages = await scraper.scrape(sluggish)
        assert {load(found)[0] for found in pages.values()} == {1.0}
        endpoints[bad] = hang
        scraper.total = 8.0
        pages = await scraper.scrape({**sluggish, good: ("load",)})
    assert load(pages[good]) == [1.0]
    assert all("not reached" in str(found) for one, found in pages.items() if one != good)


async def test_of_one_pod_only_a_few_pages_are_read(endpoints: Endpoints) -> None:
    ip = await endpoints.add(page("load 1\n"))
    async with Scraper(seconds=60, total=60) as scraper:
        pages = await scraper.scrape({of(ip, endpoints.port, f"/metrics?{n}"): {"load"} for n in range(400)})
    told = [found for found in pages.values() if isinstance(found, str)]
    assert (len(pages) - len(told), len(endpoints.asked)) == (MOST_PAGES, MOST_PAGES)
    assert all(f"more than {MOST_PAGES} different pages of this pod" in text for text in told)


def test_ipv6_stands_in_brackets() -> None:
    assert of("fd00::7", 8100).url == "http://[fd00::7]:8100/metrics"
    assert of("10.0.0.7", 8100).url == "http://10.0.0.7:8100/metrics"


async def test_a_pod_is_asked_by_https_and_its_certificate_judged(tmp_path: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    found = vouched(tmp_path)
    context.load_cert_chain(found.certificate, found.key)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await page("load 7\n")(writer)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    pod = of("127.0.0.1", server.sockets[0].getsockname()[1])._replace(scheme="https")
    async with server, Scraper(seconds=30.0, verify=False) as trusting, Scraper(seconds=30.0) as strict:
        assert load((await trusting.scrape({pod: {"load"}}))[pod]) == [7.0]
        refused = (await strict.scrape({pod: {"load"}}))[pod]
    assert isinstance(refused, str)
    assert f"GET {pod.url}" in refused
    assert pod.url.startswith("https://127.0.0.1:")
