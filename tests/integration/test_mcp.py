"""MCP on a live stack: real servers, the openai package, approvals, failures, crashes, and secrets."""

from collections.abc import Iterator
from typing import Any, Final

import openai
import pytest

from tests.support.mcp_server import McpServers
from tests.support.openai_client import MODEL, NAME, create, messages, stored, stream, tool_outputs
from tests.support.stack import STARTER, Host, LiveStack
from tests.support.upstream import Upstream, UpstreamProcess, reply, text, tool_call
from tests.support.variants import open_this_machine, responses_config, traces, variant
from tests.support.waiting import wait_until
from tests.support.wire import Json, Wire, checked, error_of, final, output_text

pytestmark = [pytest.mark.live, pytest.mark.both_hosts]

ANSWER: Final = reply(text("Done."))
SECRET: Final = "c2VjcmV0LW9mLXRoaXMtc3RhY2stZm9yLXRlc3RzISE="


def server(mcp: McpServers, path: str = "mcp", **more: Any) -> Any:
    """Return an MCP tool that needs no approval."""
    label = path.partition("/")[0]
    request = {"type": "mcp", "server_label": label, "server_url": mcp.url(path), "require_approval": "never"}
    return {**request, **more}


def calling(name: str, arguments: str, *more: tuple[str, str]) -> Any:
    """Return a reply with these calls."""
    chunks = [
        chunk
        for number, (called, given) in enumerate([(name, arguments), *more])
        for chunk in tool_call(number, f"call_{number}", called, given)
    ]
    return reply(chunks)


def types(response: Json) -> list[str]:
    """Return the types of the output items."""
    return [item["type"] for item in response["output"]]


def answer(request: Json, approve: bool, **more: Any) -> Any:
    """Return the user's answer to an approval request."""
    return {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": approve, **more}


# -- a call from end to end --------------------------------------------------------


@pytest.mark.parametrize("path", ["mcp", "sse"])
def test_sdk_stream_helper_reads_mcp_call(
    client: openai.OpenAI, upstream: Upstream, mcp: McpServers, path: str
) -> None:
    upstream.script(NAME, [calling(f"{path}__echo", '{"text": "hi"}'), ANSWER])
    with client.responses.stream(model=MODEL, input="Echo.", tools=[server(mcp, path)]) as events:
        seen = [event.type for event in events]
        response = events.get_final_response()
    assert response.output_text == "Done."
    assert [item.type for item in response.output] == ["mcp_list_tools", "mcp_call", "message"]
    assert {"response.mcp_list_tools.completed", "response.mcp_call.completed"} <= set(seen)
    assert tool_outputs(upstream) == ["hi"]
    assert stored(client, response.id)["output"][1]["output"] == "hi"


def test_mcp_tools_are_listed_once_in_a_chain(client: openai.OpenAI, upstream: Upstream, mcp: McpServers) -> None:
    upstream.script(NAME, [calling("mcp__add", '{"a": 2, "b": 3}'), ANSWER])
    first = create(client, model=MODEL, input="Add.", tools=[server(mcp)])
    upstream.script(NAME, [calling("mcp__add", '{"a": 5, "b": 5}'), ANSWER])
    second = stream(client, model=MODEL, input="Again.", tools=[server(mcp)], previous_response_id=first["id"]).response
    assert (types(first), types(second)) == (["mcp_list_tools", "mcp_call", "message"], ["mcp_call", "message"])
    assert tool_outputs(upstream) == ["5", "10"]
    listed = client.responses.input_items.list(second["id"], order="asc").data
    assert [item.type for item in listed] == ["message", "mcp_list_tools", "mcp_call", "message", "message"]


def test_mcp_structured_and_image_results_reach_the_model(
    client: openai.OpenAI, upstream: Upstream, mcp: McpServers
) -> None:
    calls = calling("mcp__weather", '{"city": "Oslo"}', ("mcp__picture", "{}"))
    upstream.script(NAME, [calls, ANSWER])
    response = stream(client, model=MODEL, input="Look.", tools=[server(mcp)]).response
    weather, picture = response["output"][1:3]
    assert '"degrees": 21.5' in weather["output"]
    assert picture["output"] == "Here it is:\n(an image)"
    shown = messages(upstream)[-1]["content"]
    assert shown[0]["image_url"]["url"].startswith("data:image/png;base64,")


def test_mcp_call_of_an_answer_that_the_model_server_cannot_read_is_not_run(
    client: openai.OpenAI, upstream: Upstream, mcp: McpServers
) -> None:
    wrong = {"error": {"message": "Invalid diff: now finding less tool calls!", "type": "server_error", "code": 500}}
    calls = [*tool_call(0, "call_0", "mcp__echo", '{"text": "one"}'), *tool_call(1, "call_1", "mcp__echo", '{"te')]
    again = calling("mcp__echo", '{"text": "two"}')
    upstream.script(NAME, [reply(calls, end="error_frame", body=wrong), again, ANSWER])
    before = mcp.calls("echo")
    with client.responses.stream(model=MODEL, input="Echo.", tools=[server(mcp)]) as events:
        response = events.get_final_response()
    assert [item.type for item in response.output] == ["mcp_list_tools", "mcp_call", "message"]
    assert tool_outputs(upstream) == ["two"]
    assert mcp.calls("echo") == before + 1
    assert types(stored(client, response.id)) == ["mcp_list_tools", "mcp_call", "message"]


def test_equal_tool_names_of_two_mcp_servers_are_distinguished(
    client: openai.OpenAI, upstream: Upstream, mcp: McpServers
) -> None:
    upstream.script(NAME, [calling("mcp__tick", "{}", ("sse__tick", "{}")), ANSWER])
    response = stream(client, model=MODEL, input="Tick.", tools=[server(mcp), server(mcp, "sse")]).response
    calls = [item for item in response["output"] if item["type"] == "mcp_call"]
    assert [(item["server_label"], item["name"], item["output"]) for item in calls] == [
        ("mcp", "tick", "1"),
        ("sse", "tick", "1"),
    ]


def test_mcp_tool_outside_allowed_tools_is_not_called(
    client: openai.OpenAI, upstream: Upstream, mcp: McpServers
) -> None:
    upstream.script(NAME, [calling("mcp__add", '{"a": 1, "b": 1}'), ANSWER])
    allowed = server(mcp, allowed_tools={"read_only": True})
    response = stream(client, model=MODEL, input="Add.", tools=[allowed]).response
    assert [tool["name"] for tool in response["output"][0]["tools"]] == ["echo", "hold_safely"]
    assert "There is no tool named 'mcp__add'" in tool_outputs(upstream)[0]


def test_mcp_tool_choice_requires_the_first_call_only(
    client: openai.OpenAI, upstream: Upstream, mcp: McpServers
) -> None:
    upstream.script(NAME, [calling("mcp__echo", '{"text": "a"}'), ANSWER])
    choice: Any = {"type": "mcp", "server_label": "mcp", "name": "echo"}
    stream(client, model=MODEL, input="Echo.", tools=[server(mcp)], tool_choice=choice)
    [first, second] = [each.body for each in upstream.requests(NAME)]
    assert [tool["function"]["name"] for tool in first["tools"]] == ["mcp__echo"]
    assert (first["tool_choice"], second["tool_choice"]) == ("required", "auto")


# -- approvals ---------------------------------------------------------------------


def test_mcp_approval_with_previous_response_id_runs_the_call_once(
    client: openai.OpenAI, upstream: Upstream, mcp: McpServers
) -> None:
    before = mcp.calls("add")
    tools = [server(mcp, require_approval="always")]
    upstream.script(NAME, calling("mcp__add", '{"a": 2, "b": 3}'))
    first = stream(client, model=MODEL, input="Add.", tools=tools).response
    assert (types(first), mcp.calls("add")) == (["mcp_list_tools", "mcp_approval_request"], before)
    upstream.script(NAME, ANSWER)
    ask = {"previous_response_id": first["id"], "input": [answer(first["output"][1], True)]}
    with client.responses.stream(model=MODEL, tools=tools, **ask) as events:
        second: Any = events.until_done().get_final_response().to_dict()
    assert types(second) == ["mcp_call", "message"]
    [call, _] = second["output"]
    assert (call["approval_request_id"], call["output"], mcp.calls("add")) == (
        first["output"][1]["id"],
        "5",
        before + 1,
    )
    assert tool_outputs(upstream) == ["5"]
    create(client, model=MODEL, input="And?", previous_response_id=second["id"])
    assert (tool_outputs(upstream), mcp.calls("add")) == (["5"], before + 1)


def test_equal_mcp_approval_requests_are_approved_by_their_own_ids(
    client: openai.OpenAI, upstream: Upstream, mcp: McpServers
) -> None:
    tools = [server(mcp, require_approval="always")]
    requests = []
    for _ in range(2):
        upstream.script(NAME, calling("mcp__add", '{"a": 2, "b": 3}'))
        requests.append(create(client, model=MODEL, input="Add.", tools=tools))
    assert requests[0]["output"][1]["id"] != requests[1]["output"][1]["id"]
    for first in requests:
        upstream.script(NAME, ANSWER)
        approval = [answer(first["output"][1], True)]
        second = create(client, model=MODEL, tools=tools, previous_response_id=first["id"], input=approval)
        assert second["output"][0]["approval_request_id"] == first["output"][1]["id"]
        assert second["output"][0]["output"] == "5"


def test_mcp_approval_with_resent_items_runs_the_call(
    client: openai.OpenAI, upstream: Upstream, mcp: McpServers
) -> None:
    before = mcp.count_of("tools/list")
    ask: Json = {"model": MODEL, "store": False, "tools": [server(mcp, require_approval="always")]}
    upstream.script(NAME, calling("mcp__echo", '{"text": "yes"}'))
    first = create(client, input="Echo.", **ask)
    items = [{"role": "user", "content": "Echo."}, *first["output"], answer(first["output"][1], True)]
    upstream.script(NAME, ANSWER)
    second = stream(client, input=items, **ask).response
    assert (types(second), tool_outputs(upstream)) == (["mcp_call", "message"], ["yes"])
    items += [*second["output"], {"role": "user", "content": "And?"}]
    third = create(client, input=items, **ask)
    assert (types(third), tool_outputs(upstream), mcp.calls("echo") > 0) == (["message"], ["yes"], True)
    assert mcp.count_of("tools/list") >= before + 1


def test_denied_mcp_call_is_reported_to_the_model_and_not_run(
    client: openai.OpenAI, upstream: Upstream, mcp: McpServers
) -> None:
    before = mcp.calls("tick")
    tools = [server(mcp, require_approval={"never": {"read_only": True}})]
    upstream.script(NAME, [calling("mcp__echo", '{"text": "a"}'), calling("mcp__tick", "{}")])
    first = create(client, model=MODEL, input="Tick.", tools=tools)
    assert types(first) == ["mcp_list_tools", "mcp_call", "mcp_approval_request"]
    upstream.script(NAME, ANSWER)
    denial = answer(first["output"][2], False, reason="Too loud.")
    second = create(client, model=MODEL, input=[denial], tools=tools, previous_response_id=first["id"])
    assert (types(second), mcp.calls("tick")) == (["message"], before)
    assert "did not approve" in tool_outputs(upstream)[1]
    assert "Too loud." in tool_outputs(upstream)[1]


@pytest.mark.usefixtures("calm")
def test_invalid_mcp_approval_responses_are_400(wire: Wire, upstream: Upstream, mcp: McpServers) -> None:
    ask: Json = {"model": MODEL, "tools": [server(mcp, require_approval="always")]}
    unknown = answer({"id": "mcpr_none"}, True)
    assert "No approval request" in error_of(wire.post({**ask, "input": [unknown]}), 400)["message"]
    upstream.script(NAME, calling("mcp__echo", '{"text": "a"}'))
    first = checked(wire.post({**ask, "input": "Echo."}))
    yes: Json = {"previous_response_id": first["id"], "input": [answer(first["output"][1], True)]}
    assert error_of(wire.post({"model": MODEL, **yes}), 400)["param"] == "tools"
    upstream.script(NAME, ANSWER)
    second = checked(wire.post({**ask, **yes}))
    again = {**ask, **yes, "previous_response_id": second["id"]}
    assert "answered already" in error_of(wire.post(again), 400)["message"]


# -- failures ---------------------------------------------------------------


UNREACHABLE: Final = "http://127.0.0.1:1/mcp"


@pytest.mark.usefixtures("calm")
def test_unreachable_mcp_server_is_424_or_a_failed_stream(client: openai.OpenAI, wire: Wire, mcp: McpServers) -> None:
    tools = [server(mcp, server_url=UNREACHABLE)]
    with pytest.raises(openai.APIStatusError) as caught:
        client.responses.create(model=MODEL, input="Echo.", tools=tools)
    body: Any = caught.value.body
    assert (caught.value.status_code, body["type"], body["param"]) == (424, "external_connector_error", "tools")
    assert body["message"].startswith("Error retrieving tool list from MCP server: 'mcp'.")
    events = stream(client, model=MODEL, input="Echo.", tools=tools)
    assert events.types[-4:] == ["mcp_list_tools.failed", "output_item.done", "error", "failed"]
    assert "could not be reached" in events.response["output"][0]["error"]
    assert wire.retrieve(events.response["id"]) == events.response


@pytest.mark.usefixtures("calm")
def test_mcp_server_rejecting_the_token_is_reported(client: openai.OpenAI, mcp: McpServers) -> None:
    for more in ({}, {"authorization": "wrong-token-canary"}):
        with pytest.raises(openai.APIStatusError, match=r"401 Unauthorized. Send valid credentials .* 'authorization'"):
            client.responses.create(model=MODEL, input="Echo.", tools=[server(mcp, "locked/mcp", **more)])


def test_mcp_server_at_private_address_is_refused(client: openai.OpenAI, mcp: McpServers) -> None:
    tools = [server(mcp, server_url="http://169.254.169.254/latest")]
    with pytest.raises(openai.APIStatusError, match=r"no public address.* setting 'fetch\.allowed_networks'"):
        client.responses.create(model=MODEL, input="Echo.", tools=tools)


@pytest.mark.usefixtures("calm")
def test_failed_mcp_calls_are_reported_to_the_model(client: openai.OpenAI, upstream: Upstream, mcp: McpServers) -> None:
    # The second call is whole, so the model learns that its arguments are not JSON. Half a call fails the response.
    upstream.script(NAME, [calling("mcp__fail", '{"reason": "No paper."}', ("mcp__echo", '{"word": a}')), ANSWER])
    response = stream(client, model=MODEL, input="Print.", tools=[server(mcp)]).response
    failed, broken = response["output"][1:3]
    assert (failed["status"], failed["output"], failed["error"]["type"]) == ("failed", None, "mcp_tool_execution_error")
    assert "No paper." in failed["error"]["content"][0]["text"]
    assert (broken["status"], broken["error"]["type"]) == ("failed", "mcp_protocol_error")
    assert "No paper." in tool_outputs(upstream)[0]
    assert "not a JSON object" in tool_outputs(upstream)[1]


@pytest.mark.usefixtures("calm")
def test_cancel_during_mcp_call_leaves_it_incomplete(wire: Wire, upstream: Upstream, mcp: McpServers) -> None:
    held, ended = mcp.held("hold"), sum(each["http"] == "DELETE" for each in mcp.seen())
    upstream.script(NAME, [calling("mcp__hold", '{"word": "a"}'), ANSWER])
    body = {"model": MODEL, "input": "Hold.", "background": True, "tools": [server(mcp)]}
    response = checked(wire.post(body))
    wait_until(lambda: mcp.held("hold") > held)
    cancelled = checked(wire.http.post(f"/responses/{response['id']}/cancel"))
    assert [item.get("status") for item in cancelled["output"]] == [None, "incomplete"]
    mcp.release()
    assert cancelled["status"] == "cancelled"
    assert final(wire.replay(response["id"])) == cancelled
    # Servers of the newest protocol have no sessions. With the others, the session is ended soon.
    if "server/discover" not in {each["method"] for each in mcp.seen()}:
        wait_until(lambda: sum(each["http"] == "DELETE" for each in mcp.seen()) > ended)


# -- killed servers, and secrets -------------------------------------------------


@pytest.fixture(scope="module")
def own(
    host: Host,
    stack_env: dict[str, str],
    upstream_process: UpstreamProcess,
    mcp: McpServers,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LiveStack]:
    """A stack that may be killed, with a configured secret and a connector."""

    def change(config: Json) -> None:
        open_this_machine(config)
        responses_config(config)["secrets"] = [SECRET]
        config["connectors"] = [{"connector_id": "connector_gmail", "url": mcp.url()}]

    folder = tmp_path_factory.mktemp("own")
    env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url}
    with LiveStack(variant(STARTER, folder / "config.yaml", change), env, folder / "state", host=host) as live:
        yield live


@pytest.mark.one_host
@pytest.mark.extended  # a lease has to expire
def test_killed_server_repeats_only_read_only_mcp_calls(own: LiveStack, upstream: Upstream, mcp: McpServers) -> None:
    names = ("hold", "hold_safely")
    before = {name: mcp.calls(name) for name in names}
    held = {name: mcp.held(name) for name in names}
    tools = [server(mcp, "locked/mcp", authorization=mcp.token)]
    queued: dict[str, str] = {}
    with Wire(own) as wire:
        for name in names:
            upstream.script(name, [calling(f"locked__{name}", '{"word": "safe"}'), ANSWER])
            body = {"model": f"local/{name}", "input": "Hold.", "background": True, "tools": tools}
            queued[name] = checked(wire.post(body))["id"]
        wait_until(lambda: all(mcp.held(name) == held[name] + 1 for name in names))
    own.kill()
    own.start()
    with Wire(own) as wire:
        wait_until(lambda: mcp.held("hold_safely") == held["hold_safely"] + 2)
        mcp.release()
        wait_until(lambda: all(wire.retrieve(each)["status"] == "completed" for each in queued.values()))
        lost, again = [wire.retrieve(queued[name]) for name in names]
        for each in queued.values():
            wire.replay(each, taken_over=True)
    assert types(lost) == types(again) == ["mcp_list_tools", "mcp_call", "message"]
    assert [each["output"][1]["status"] for each in (lost, again)] == ["failed", "completed"]
    assert mcp.calls("hold_safely") == before["hold_safely"] + 2
    assert (mcp.calls("hold"), output_text(lost), output_text(again)) == (before["hold"] + 1, "Done.", "Done.")
    assert "interrupted" in tool_outputs(upstream, "hold")[0]
    assert tool_outputs(upstream, "hold_safely") == ["safe"]


def test_mcp_connector_is_called_and_unknown_one_is_refused(own: LiveStack, upstream: Upstream) -> None:
    upstream.script(NAME, [calling("wiki__echo", '{"text": "hi"}'), ANSWER])
    wiki: Any = {"type": "mcp", "server_label": "wiki", "connector_id": "connector_gmail", "require_approval": "never"}
    with own.client() as client:
        response = create(client, model=MODEL, input="Echo.", tools=[wiki])
        assert response["output"][1]["output"] == "hi"
        unknown: Any = {**wiki, "connector_id": "mail"}
        with pytest.raises(openai.APIStatusError, match="This stack has no connector 'mail'"):
            client.responses.create(model=MODEL, input="Echo.", tools=[unknown])


def test_mcp_credentials_are_not_stored_or_shown(own: LiveStack, upstream: Upstream, mcp: McpServers) -> None:
    path = "locked/mcp?key=query-canary-12"
    upstream.script(NAME, [calling("locked__echo", '{"text": "hi"}'), ANSWER, ANSWER])
    secret = server(mcp, path, headers={"X-Key": "header-canary-99"}, authorization=mcp.token)
    with own.client() as client:
        shown = create(client, model=MODEL, input="Echo.", tools=[secret])
        streamed = stream(client, model=MODEL, input="Echo.", tools=[secret], stream_options={}).response
        queued = client.responses.create(model=MODEL, input="Echo.", tools=[secret], background=True)
        wait_until(lambda: client.responses.retrieve(queued.id).status == "completed")
        wrong: Any = {**secret, "authorization": "wrong-canary-13"}
        with pytest.raises(openai.APIStatusError) as caught:
            client.responses.create(model=MODEL, input="Echo.", tools=[wrong])
        kept = [stored(client, each) for each in (shown["id"], queued.id)]
    assert shown["tools"][0]["server_url"] == f"{mcp.base_url}/<redacted>"
    assert shown["tools"][0]["headers"] is None
    assert "authorization" not in shown["tools"][0]
    assert "canary" not in str([shown, streamed, kept, caught.value.body])
    assert traces(own.state_dir, "canary") == []


def test_mcp_url_that_may_have_a_credential_is_400_in_an_item(wire: Wire, mcp: McpServers) -> None:
    by_path = server(mcp, "s/path-canary-12/mcp")
    item = {"type": "additional_tools", "role": "developer", "tools": [by_path]}
    error = error_of(wire.post({"model": MODEL, "input": [item]}), 400)
    assert (error["param"], "canary" in error["message"]) == ("input[0].tools[0]", False)
