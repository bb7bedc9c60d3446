"""A container with a network, in a real jail: what its code reaches, what it cannot, and what it sees of secrets."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from llama_stack_responses.features.code.network.network import Networks
from llama_stack_responses.features.code.network.policy import NetworkPolicy
from llama_stack_responses.features.code.network.secrets import Redaction
from llama_stack_responses.features.code.sandbox.container import Bounds, Container
from llama_stack_responses.features.code.settings import ContainerNetwork
from tests.support.certificates import Certificates
from tests.support.descendants import descendants
from tests.support.sites import OK, site
from tests.support.waiting import until
from tests.unit.features.code.test_container import BOUNDS, jail, volumes

KEY: Final = "sk-1234567890-secret"
API: Final = "api.localhost"

FETCH: Final = """
import os, urllib.error, urllib.request
def fetched(url, **headers):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=110) as answer:
            return answer.read().decode()
    except (OSError, urllib.error.URLError) as error:
        return error.read().decode() if hasattr(error, 'read') else str(error)
"""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.create_in(tmp_path_factory.mktemp("certificates"), [API], address=None)


@pytest.fixture(autouse=True)
def trusted(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process trust the authority of the tests, as an operator would with the variable."""
    monkeypatch.setenv("SSL_CERT_FILE", certificates.path("ca.pem"))


@asynccontextmanager
async def reaching(
    folder: Path, *ports: int, host: str = API, secret: bool = False, bounds: Bounds = BOUNDS, **settings: Any
) -> AsyncIterator[Container]:
    """Open a container that reaches a host at these ports, with the secret KEY."""
    operator = ContainerNetwork(**{"allowed_domains": ["*"], "ports": ports, **settings})
    networks = Networks(operator, ["127.0.0.0/8", "::1/128"], [], jail().variables())
    secrets = {"domain_secrets": [{"domain": host, "name": "API_KEY", "value": KEY}]} if secret else {}
    policy = networks.accept({"type": "allowlist", "allowed_domains": [host], **secrets})
    container = Container(jail(), volumes().make(folder), bounds, network=networks.open(policy, "cntr_test"))
    try:
        yield container
    finally:
        await container.kill()


async def test_code_reaches_allowed_hosts_only(tmp_path: Path) -> None:
    async with site() as web, reaching(tmp_path, web.port) as container:
        ran = await container.run(f"{FETCH}\nprint(fetched('http://api.localhost:{web.port}/'))")
        assert (ran.printed, ran.stopped) == ("ok\n", None)
        ran = await container.run("print(fetched('http://example.com/'))\nprint(fetched('https://example.com/'))")
        assert ran.printed.count("The domain 'example.com' is not in the 'allowed_domains' of this container.") == 2
        ran = await container.run("import socket\nsocket.create_connection(('example.com', 80))")
        assert "name resolution" in ran.printed


SERVE: Final = """
import http.server, subprocess, threading
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'mine')
    def log_message(self, *_):
        pass
server = http.server.HTTPServer(('localhost', 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
for name in ('localhost', '127.0.0.1'):
    url = f'http://{name}:{server.server_port}/'
    print(fetched(url), subprocess.run(['curl', '-sS', url], capture_output=True, text=True).stdout)
"""


@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
async def test_localhost_is_the_container_itself(tmp_path: Path) -> None:
    async with reaching(tmp_path, 80, host="example.com") as container:
        ran = await container.run(FETCH + SERVE)
    assert ran.printed == "mine mine\n" * 2


SOCKETS: Final = """
import errno, socket
def tried(family, kind, protocol=0):
    try:
        return socket.socket(family, kind, protocol)
    except OSError as error:
        return errno.errorcode[error.errno]
print([tried(*each) for each in (
    (socket.AF_INET, socket.SOCK_DGRAM), (socket.AF_INET, socket.SOCK_RAW, 6), (socket.AF_INET6, socket.SOCK_STREAM),
    (socket.AF_INET, socket.SOCK_STREAM, 132), (socket.AF_INET, socket.SOCK_STREAM, 262), (socket.AF_NETLINK, socket.SOCK_RAW),
    (socket.AF_PACKET, socket.SOCK_RAW), (socket.AF_VSOCK, socket.SOCK_STREAM))])
plain = tried(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, 6)
for host in ('1.1.1.1', '169.254.169.254', '10.0.0.1', 'HOST'):
    with socket.socket() as direct:
        try:
            print(direct.connect((host, 80)))
        except OSError as error:
            print(errno.errorcode[error.errno])
for level, option in ((6, 31), (6, 13), (6, 19), (0, 64), (0, 35), (1, 7), (1, 8), (6, 1)):
    try:
        plain.setsockopt(level, option, 1)
        print('set', level, option)
    except OSError as error:
        print(errno.errorcode[error.errno])
"""


async def test_code_has_tcp_to_its_proxy_and_no_other_network(tmp_path: Path) -> None:
    async with site() as web, reaching(tmp_path, web.port) as container:
        ran = await container.run(SOCKETS.replace("HOST", "127.0.0.2"))
        families, *rest = ran.printed.splitlines()
        assert families == str(["EAFNOSUPPORT"] * 8)
        assert rest[:4] == ["ENETUNREACH", "ENETUNREACH", "ENETUNREACH", "ECONNREFUSED"]
        assert rest[4:] == [*["EPERM"] * 7, "set 6 1"]
        # The loopback of the container is not that of this machine.
        ran = await container.run(f"import socket\nsocket.create_connection(('127.0.0.1', {web.port}))")
        assert "ConnectionRefusedError" in ran.printed
    assert web.connections == 0


async def test_container_without_a_network_has_no_proxy(tmp_path: Path) -> None:
    container = Container(jail(), volumes().make(tmp_path), BOUNDS)
    try:
        ran = await container.run("import os, socket\nprint('HTTP_PROXY' in os.environ)\nsocket.socket()")
        assert "False\n" in ran.printed
        assert "Address family not supported" in ran.printed
    finally:
        await container.kill()


async def test_secret_is_put_into_a_request_outside_the_container(tmp_path: Path, certificates: Certificates) -> None:
    def echo(request: bytes) -> bytes:
        return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(request), request)

    async with site(echo, certificates.of_server()) as web, reaching(tmp_path, web.port, secret=True) as container:
        url = f"https://api.localhost:{web.port}/"
        ran = await container.run(
            f"{FETCH}\nshown = fetched('{url}', authorization='Bearer ' + os.environ['API_KEY'])\n"
            "print(os.environ['API_KEY'], shown)\nopen('shown', 'w').write(shown)"
        )
        assert ran.printed.startswith("$API_KEY GET / HTTP/1.1")
        assert KEY not in ran.printed
        assert KEY.encode() not in (container.folder / "shown").read_bytes()
        # A host could return a secret in a form that the proxy does not know.
        ran = await container.run(f"print('{KEY[:4]}' + '{KEY[4:]}')")
        assert ran.printed == "$API_KEY\n"
        found = await container.command(
            f"cat /proc/*/environ /proc/*/cmdline; grep -rc {KEY} /etc /tmp /mnt; ls /proc", 110, 9_999
        )
        assert KEY not in found.stdout.replace(f"grep -rc {KEY}", "")
    assert f"authorization: bearer {KEY}".encode() in web.requests[0].replace(b"Bearer", b"bearer")


@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
async def test_curl_trusts_hosts_with_and_without_secrets(tmp_path: Path, certificates: Certificates) -> None:
    for secret in (False, True):
        folder = tmp_path / str(secret)
        folder.mkdir()
        async with (
            site(context=certificates.of_server()) as web,
            reaching(folder, web.port, secret=secret) as container,
        ):
            url = f"https://api.localhost:{web.port}/"
            done = await container.command(f"curl -sS -H 'x-key: $API_KEY' {url}", 110, 2_000)
            assert (done.stdout, done.stderr, done.exit_code) == ("ok", "", 0)
        sent = KEY if secret else "$API_KEY"
        assert f"x-key: {sent}".encode() in web.requests[0]


@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("git")), reason="needs curl and git")
async def test_reason_of_a_refusal_is_shown_if_the_program_does_not_show_it(tmp_path: Path) -> None:
    reason = "[network] The domain 'example.com' is not in the 'allowed_domains' of this container.\n"
    async with reaching(tmp_path, 80) as container:
        for command in ("curl -sS https://example.com/", "git ls-remote https://example.com/a.git"):
            refused = await container.command(f"{command}; {command}", 110, 2_000)
            assert refused.stderr.count("403") == 2
            assert refused.stderr.endswith(f"\n{reason}")
            assert refused.stderr.count(reason) == 1
        ran = await container.run("import os\nos.system('curl -s https://example.com/; printf here')")
        assert ran.printed in (f"here0\n{reason}", f"here56\n{reason}", f"here\n{reason}")
        done = await container.command("printf fine >&2", 110, 2_000)
        assert (done.stdout, done.stderr) == ("", "fine")


@pytest.mark.skipif(not shutil.which("node"), reason="needs node")
async def test_node_trusts_the_container_authority(tmp_path: Path, certificates: Certificates) -> None:
    script = (
        "const tls = require('node:tls'), http = require('node:http');"
        "const proxy = new URL(process.env.HTTPS_PROXY), to = 'api.localhost:PORT';"
        "http.request({host: proxy.hostname, port: proxy.port, method: 'CONNECT', path: to}).on('connect', (_, socket) => {"
        "const inner = tls.connect({socket, servername: 'api.localhost'}, () => inner.write("
        "`GET / HTTP/1.1\\r\\nhost: ${to}\\r\\nconnection: close\\r\\nx-key: ${process.env.API_KEY}\\r\\n\\r\\n`));"
        "inner.pipe(process.stdout)}).end()"
    )
    async with (
        site(context=certificates.of_server()) as web,
        reaching(tmp_path, web.port, secret=True, bounds=Bounds(120, 2**30, 64, 2.0, 9_999)) as container,
    ):
        (container.folder / "ask.js").write_text(script.replace("PORT", str(web.port)))
        done = await container.command("node --jitless --max-old-space-size=64 ask.js", 110, 2_000)
        if "memory" in done.stderr or done.exit_code in (133, 134, 139):
            pytest.skip("node needs more address space than a container has")
        assert done.stdout.endswith("ok"), done.stderr
    assert f"x-key: {KEY}".encode() in web.requests[0]


def proxies() -> list[int]:
    """Return the processes of proxies that run."""
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in descendants(os.getpid())}
    return [pid for pid, command in commands.items() if b"features.code.network.proxy" in command]


AGAIN: Final = """
import os, time
print(fetched(URL))
open('killed', 'w').close()
while os.path.exists('killed'):
    time.sleep(0.05)
print(fetched(URL))
"""


async def test_proxy_that_is_killed_during_a_call_is_started_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with site() as web, reaching(tmp_path, web.port) as container:
        running = asyncio.create_task(
            container.run(FETCH + AGAIN.replace("URL", repr(f"http://api.localhost:{web.port}/")))
        )
        waits = container.folder / "killed"
        await until(waits.exists)
        [pid] = proxies()
        os.kill(pid, 9)
        await until(lambda: proxies() not in ([], [pid]))
        waits.unlink()
        assert (await running).printed == "ok\nok\n"
    assert caplog.text.count("the proxy of a container has ended") == 1


async def test_proxy_that_ends_again_and_again_is_not_started_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with reaching(tmp_path, 80) as container:
        await container.run("1")
        monkeypatch.setattr(sys, "executable", "/bin/false")
        os.kill(proxies()[0], 9)
        await until(lambda: caplog.text.count("the proxy of a container has ended") == 4)
        await until(lambda: proxies() == [])
        assert caplog.text.count("the proxy of a container has ended") == 4
        monkeypatch.undo()
        await container.run("1")
        assert len(proxies()) == 1


async def test_proxy_joins_the_control_group_of_its_container(tmp_path: Path) -> None:
    network = Networks(ContainerNetwork(allowed_domains=["*"]), [], [], []).open(
        NetworkPolicy((API,), frozenset({API})), "cntr_test"
    )
    assert network
    for descriptor in (await network.prepare()).files.values():
        os.close(descriptor)
    joined = tmp_path / "cgroup.procs"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        network.begin(tmp_path, listener)
        await until(lambda: joined.exists() and joined.read_text() == "0")
        await network.end()


async def test_secrets_are_searched_for_outside_of_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set[bool]()
    redact = Redaction.of

    def noted(self: Redaction, text: str) -> str:
        threads.add(threading.current_thread() is threading.main_thread())
        return redact(self, text)

    monkeypatch.setattr(Redaction, "of", noted)
    async with reaching(tmp_path, 80, secret=True) as container:
        assert (await container.run(f"print('{KEY}')")).printed == "$API_KEY\n"
        assert (await container.command(f"echo {KEY}", 110, 99)).stdout == "$API_KEY\n"
    assert threads == {False}


async def test_proxy_ends_with_its_container_and_comes_back_if_it_is_killed(tmp_path: Path) -> None:
    async with site() as web, reaching(tmp_path, web.port) as container:
        asked = f"{FETCH}\nprint(fetched('http://api.localhost:{web.port}/'))"
        assert proxies() == []
        assert (await container.run(asked)).printed == "ok\n"
        [pid] = proxies()
        os.kill(pid, 9)
        await until(lambda: pid not in descendants(os.getpid()))
        assert (await container.run(asked)).printed == "ok\n"
        assert len(proxies()) == 1
        await container.kill()
        await until(lambda: proxies() == [])
        assert (await container.run(asked)).printed == "ok\n"


FILL: Final = """
import socket, time
server = socket.create_server(('127.0.0.1', 0), backlog=512)
held = []
for _ in range(200):
    client = socket.create_connection(server.getsockname())
    client.setblocking(False)
    held += [client, server.accept()[0]]
    try:
        while client.send(bytes(2**20)):
            pass
    except BlockingIOError:
        pass
time.sleep(110)
"""


async def test_memory_of_connections_counts_as_that_of_the_container(tmp_path: Path) -> None:
    bounds = Bounds(seconds=120, memory_bytes=256 * 2**20, processes=32, processors=1.0, shown_bytes=2_000)
    async with reaching(tmp_path, 80, bounds=bounds) as container:
        assert (await container.run(FILL)).stopped == "It used more than 256 MiB of memory."


async def test_refused_requests_are_logged_without_what_code_chose(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with site(OK) as web, reaching(tmp_path, web.port, secret=True) as container:
        requests = [
            f"fetched('http://{each}/')"
            for each in ("example.com", "1.2.3.4", "a\\\\nb.example", f"api.localhost:{web.port}")
        ]
        await container.run(
            f"{FETCH}\n{', '.join(requests)}\nfetched('http://api.localhost:{web.port}/', a='$API_KEY')"
        )
        await until(lambda: "to api.localhost ended with 403" in caplog.text)
    assert "a request of container cntr_test to example.com ended with 403" in caplog.text
    assert KEY not in caplog.text
    assert "b.example" not in caplog.text


async def test_flood_of_refused_requests_is_not_logged_without_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with reaching(tmp_path, 80) as container:
        flood = (
            "import os, http.client\nfor _ in range(150):\n    proxy = http.client.HTTPConnection('127.0.0.1', 3128)\n"
        )
        ran = await container.run(
            f"{flood}    proxy.request('GET', 'http://example.com/')\n    proxy.getresponse().read()"
        )
        assert not ran.failed
        await until(lambda: caplog.text.count("to example.com ended with 403") == 100)
    assert caplog.text.count("to example.com ended with 403") == 100


async def test_traffic_that_is_used_up_stays_so_when_processes_end(tmp_path: Path) -> None:
    large = b"HTTP/1.1 200 OK\r\ncontent-length: 900000\r\n\r\n" + bytes(900_000)
    async with site(large) as web, reaching(tmp_path, web.port, traffic_mb=1) as container:
        asked = f"{FETCH}\nprint(fetched('http://api.localhost:{web.port}/')[-300:])"
        await container.run(asked)
        await container.kill()
        await container.run(asked)
        await container.kill()
        assert "has sent and received all of its 1 MiB" in (await container.run(asked)).printed
    assert web.connections == 2
