"""A gateway that goes away and comes back, as a real listening socket does."""

import socket
import threading

from shiplift.pipelines.daemons.operator.gateway import GatewayWatch


def listening(port: int = 0) -> socket.socket:
    server = socket.create_server(("127.0.0.1", port), backlog=64)
    server.settimeout(10)
    return server


def test_it_is_noticed_when_one_of_its_ports_takes_no_connections_and_when_it_does_again() -> None:
    first, second = listening(), listening()
    port = second.getsockname()[1]
    watch = GatewayWatch(lambda: "127.0.0.1", ports=(first.getsockname()[1], port))
    assert not watch.look()
    assert watch.seen().accepts
    second.close()
    assert watch.look()
    assert not watch.seen().accepts
    gone_at = watch.seen().changed_at
    assert not watch.look()
    second = listening(port)
    assert watch.look()
    assert watch.seen().accepts
    assert watch.seen().changed_at > gone_at > 0
    first.close()
    second.close()


def test_a_gateway_without_an_address_is_not_asked() -> None:
    watch = GatewayWatch(lambda: "", ports=(1,))
    assert not watch.look()
    assert watch.seen().accepts


def test_who_watches_is_woken_at_each_change() -> None:
    server, woken, stop = listening(), threading.Event(), threading.Event()
    watch = GatewayWatch(lambda: "127.0.0.1", ports=(server.getsockname()[1],))
    thread = threading.Thread(target=watch.run, args=(stop, woken.set))
    thread.start()
    try:
        server.close()
        assert woken.wait(120)
        assert not watch.seen().accepts
    finally:
        stop.set()
        thread.join(timeout=120)
