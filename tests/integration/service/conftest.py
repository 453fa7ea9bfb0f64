"""Services that tests share: each is started once, and only for the tests that want that many workers."""

import asyncio
import collections
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chaos.proxy import Proxy
from tests.integration.service.fork_server import ForkServer
from tests.integration.service.service_calls import Calls
from tests.integration.service.service_data import Data, write_data
from tests.integration.service.service_driving import Link, Service
from tests.integration.service.service_gate import Gate, Keeper


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of a service of one size follow one another; pytest itself groups by the place in a list of parameters."""
    here = Path(__file__).parent
    sizes = {
        place: item.callspec.params["service"]
        for place, item in enumerate(items)
        if isinstance(item, pytest.Function) and item.path.parent == here and "service" in item.fixturenames
        if hasattr(item, "callspec")
    }
    sorted_items = [items[place] for place in sorted(sizes, key=lambda place: (sizes[place], place))]
    for place, item in zip(sizes, sorted_items, strict=True):
        items[place] = item


@pytest.fixture(scope="session", autouse=True)
def _fork_server(_own_temporary_directory: None) -> Iterator[None]:
    with ForkServer() as Service.fork_server:
        yield


@pytest.fixture(scope="session")
def service(request: pytest.FixtureRequest) -> Iterator[Service]:
    """A dispatcher and ``request.param`` workers, for tests that end no process."""
    with Service(request.param) as running:
        yield running


@pytest.fixture(scope="session")
def service_with() -> type[Service]:
    return Service


@pytest.fixture
def calls(tmp_path: Path) -> Calls:
    """Of the test's own pipeline."""
    return Calls(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a cache, not made yet."""
    return tmp_path / "cache"


@pytest.fixture
def own_service(request: pytest.FixtureRequest) -> Iterator[Service]:
    """The same, for one test that may do to it what it likes."""
    with Service(request.param) as running:
        yield running


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


@pytest.fixture
def keeper(gate: Gate) -> Iterator[Keeper]:
    """Of ``gate``, which is closed."""
    keeper = Keeper(gate)
    yield keeper
    keeper.close()


@pytest.fixture
def link() -> Iterator[Link]:
    """Opens a link of so many bytes a second at a port of 127.0.0.2, which leads to the same one of 127.0.0.1."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    proxies: list[Proxy] = []

    def run(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    def opened(bytes_s: float | None = None) -> Proxy:
        proxies.append(run(Proxy(("127.0.0.1", 0), collections.deque(), bytes_s).open("127.0.0.2")))
        return proxies[-1]

    yield opened
    for proxy in proxies:
        run(proxy.close())
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
