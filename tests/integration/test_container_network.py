"""Containers that reach hosts, through the API: what their code reaches, and where secrets are and are not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import openai
import pytest

from tests.support.certificates import Certificates
from tests.support.openai_client import MODEL, NAME, Json, create, stored
from tests.support.stack import STARTER, Host, LiveStack
from tests.support.upstream import Reply, Upstream, UpstreamProcess, reply, text, tool_call
from tests.support.variants import add_containers, open_this_machine, responses_config, traces, variant
from tests.support.waiting import wait_until
from tests.support.web import Answer, ReceivedRequest, Web

pytestmark = pytest.mark.live

CANARY: Final = "sk-canary-81724619"
SAID: Final = reply(text("Done."))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.create_in(tmp_path_factory.mktemp("tls"), ["api.localhost", "other.localhost"], address=None)


@pytest.fixture(scope="module")
def site(certificates: Certificates) -> Iterator[Web]:
    """A site that answers with the headers that it gets."""

    def shown(request: ReceivedRequest) -> Answer:
        return Answer(json.dumps(dict(request.headers)).encode())

    with Web(certificate=certificates.of_server()) as web:
        web.answer_all = shown
        yield web


@pytest.fixture(scope="module")
def stack(
    host: Host,
    stack_env: dict[str, str],
    upstream_process: UpstreamProcess,
    certificates: Certificates,
    site: Web,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LiveStack]:
    """A stack whose operator allows the hosts below localhost."""
    folder = tmp_path_factory.mktemp("network")

    def change(config: dict[str, Any]) -> None:
        add_containers(config)
        open_this_machine(config)
        network = {"allowed_domains": "*.localhost", "denied_domains": ["denied.localhost"], "ports": [site.port]}
        responses_config(config)["code_interpreter"]["network"] = network

    env = {
        **stack_env,
        "INFERENCE_URL": upstream_process.client.base_url,
        "SSL_CERT_FILE": certificates.path("ca.pem"),
    }
    with LiveStack(variant(STARTER, folder / "config.yaml", change), env, folder / "state", host=host) as live:
        yield live


@pytest.fixture
def client(stack: LiveStack, upstream: Upstream) -> Iterator[openai.OpenAI]:
    with stack.client() as client:
        yield client


def policy(*domains: str) -> Json:
    """Return a policy that allows these domains, with a secret of the first one."""
    secrets = [{"domain": domains[0], "name": "API_KEY", "value": CANARY}]
    return {"type": "allowlist", "allowed_domains": list(domains), "domain_secrets": secrets}


def asking(site: Web, host: str = "api.localhost") -> str:
    """Return Python code that sends the placeholder to a host, and prints the answer."""
    return (
        "import os, urllib.request\n"
        f"url = 'https://{host}:{site.port}/'\n"
        "headers = {'authorization': 'Bearer ' + os.environ['API_KEY']}\n"
        "print(urllib.request.urlopen(urllib.request.Request(url, headers=headers)).read().decode())"
    )


def python(code: str) -> Reply:
    return reply(tool_call(0, "c1", "python", json.dumps({"code": code})))


def shell(code: str) -> Reply:
    commands = [f"python3 - <<'END'\n{code}\nEND"]
    return reply(tool_call(0, "c1", "shell", json.dumps({"commands": commands})))


def sent(site: Web) -> list[str]:
    """Return the credentials that the site got, and forget them."""
    given = [each.headers["authorization"] for each in site.seen]
    site.seen.clear()
    return given


def test_code_interpreter_sends_a_secret_that_nobody_sees(
    client: openai.OpenAI, stack: LiveStack, upstream: Upstream, site: Web
) -> None:
    """Also in the background, where the request is stored, and in the turn that continues it."""
    tool = {"type": "code_interpreter", "container": {"type": "auto", "network_policy": policy("api.localhost")}}
    request: Any = {"model": MODEL, "tools": [tool], "include": ["code_interpreter_call.outputs"]}
    upstream.script(NAME, [python("kept = 1\n" + asking(site)), SAID, python("print(kept)\n" + asking(site)), SAID])
    first = client.responses.create(input="Hi", background=True, **request)
    wait_until(lambda: client.responses.retrieve(first.id).status == "completed")
    second = create(client, input="On", previous_response_id=first.id, **request)
    assert sent(site) == [f"Bearer {CANARY}"] * 2
    for response in (stored(client, first.id), second):
        assert response["tools"][0]["container"]["network_policy"] == {
            **policy("api.localhost"),
            "domain_secrets": [{"domain": "api.localhost", "name": "API_KEY", "value": ""}],
        }
        [call] = [item for item in response["output"] if item["type"] == "code_interpreter_call"]
        assert "Bearer " in call["outputs"][0]["logs"]
        assert CANARY not in json.dumps(response)
    assert second["output"][0]["outputs"][0]["logs"].startswith("1\n")
    description = upstream.requests(NAME)[0].body["tools"][0]["function"]["description"]
    assert "without network access" not in description
    assert "The network reaches only these hosts, by HTTP and HTTPS: api.localhost." in description
    assert CANARY not in json.dumps([each.body for each in upstream.requests(NAME)])
    assert traces(stack.state_dir, CANARY) == []


def test_shell_reaches_allowed_hosts_and_sends_a_secret_to_its_own_only(
    client: openai.OpenAI, upstream: Upstream, site: Web
) -> None:
    allowed = policy("api.localhost", "other.localhost")
    tool = {"type": "shell", "environment": {"type": "container_auto", "network_policy": allowed}}
    hosts = ("api.localhost", "other.localhost", "third.localhost")
    upstream.script(NAME, [*(shell(asking(site, host)) for host in hosts), SAID])
    response = create(client, model=MODEL, input="Hi", tools=[tool])
    outputs = [item["output"][0] for item in response["output"] if item["type"] == "shell_call_output"]
    assert [each["outcome"]["exit_code"] for each in outputs] == [0, 0, 1]
    assert sent(site) == [f"Bearer {CANARY}", "Bearer $API_KEY"]
    refused = "Tunnel connection failed: 403 The domain 'third.localhost' is not in the 'allowed_domains'"
    assert refused in outputs[2]["stderr"]
    assert response["tools"][0]["environment"]["network_policy"]["domain_secrets"][0]["value"] == ""
    assert CANARY not in json.dumps(response)


def test_created_container_keeps_its_network(client: openai.OpenAI, upstream: Upstream, site: Web) -> None:
    created = client.containers.create(name="notes", network_policy=policy("api.localhost"))  # type: ignore[arg-type]
    shown = {"type": "allowlist", "allowed_domains": ["api.localhost"]}
    for container in (created, client.containers.retrieve(created.id), *client.containers.list()):
        if container.id == created.id:
            assert container.network_policy
            assert container.network_policy.to_dict() == shown
    named = {"type": "shell", "environment": {"type": "container_reference", "container_id": created.id}}
    upstream.script(NAME, [shell(asking(site)), python(asking(site)), SAID])
    create(client, model=MODEL, input="Hi", tools=[named, {"type": "code_interpreter", "container": created.id}])
    assert sent(site) == [f"Bearer {CANARY}"] * 2
    client.containers.delete(created.id)


@pytest.mark.parametrize(
    ("domain", "param"), [("example.com", "allowed_domains[0]"), ("denied.localhost", "allowed_domains[0]")]
)
def test_domain_that_the_operator_does_not_allow_is_400(client: openai.OpenAI, domain: str, param: str) -> None:
    says = f"does not allow the domain '{domain}' for containers"
    with pytest.raises(openai.BadRequestError, match=says) as raised:
        client.containers.create(name="notes", network_policy={"type": "allowlist", "allowed_domains": [domain]})
    assert (raised.value.param, raised.value.code) == (f"network_policy.{param}", "invalid_value")
    for kind, field, container in (
        ("code_interpreter", "container", "auto"),
        ("shell", "environment", "container_auto"),
    ):
        tool = {"type": kind, field: {"type": container, "network_policy": policy(domain)}}
        with pytest.raises(openai.BadRequestError, match=says) as raised:
            create(client, model=MODEL, input="Hi", tools=[tool])
        assert raised.value.param == f"tools[0].{field}.network_policy.{param}"
        assert CANARY not in str(raised.value)
