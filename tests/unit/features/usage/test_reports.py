"""Reports and costs in OpenAI's shape, their questions, and who may ask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest
from fastapi import Request
from hypothesis import given
from hypothesis import strategies as st
from openai.types.admin.organization import usage_completions_response as types
from pydantic import BaseModel

from llama_stack_responses.config.roles import Roles
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import ANONYMOUS, Owner
from llama_stack_responses.features.usage.counted import Counts, Dimensions, dimensions_of
from llama_stack_responses.features.usage.prices import Prices
from llama_stack_responses.features.usage.queries import asked, page_of
from llama_stack_responses.features.usage.reading import Reading
from llama_stack_responses.features.usage.reports import COST_GROUPS, REPORTS, WIDTHS, Report, costs
from llama_stack_responses.features.usage.rows import Table
from llama_stack_responses.features.usage.settings import Price
from llama_stack_responses.features.usage.visibility import Seen, Visibility
from llama_stack_responses.store.decoder import Decoder
from llama_stack_responses.store.ends import Ended
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.wire.request_handling import Query

RESULTS: Final[dict[str, type[BaseModel]]] = {
    "/usage/completions": types.DataResultOrganizationUsageCompletionsResult,
    "/usage/images": types.DataResultOrganizationUsageImagesResult,
    "/usage/web_search_calls": types.DataResultOrganizationUsageWebSearchesResult,
    "/usage/file_search_calls": types.DataResultOrganizationUsageFileSearchesResult,
    "/usage/code_interpreter_sessions": types.DataResultOrganizationUsageCodeInterpreterSessionsResult,
}
ADA: Final = Dimensions("", "ada", "search", "key_1", "local/m", "x")
BOB: Final = Dimensions("", "bob", "search", "", "local/n", "")
FULL: Final[Counts] = {
    "requests": 2,
    "input_tokens": 100,
    "cached_tokens": 40,
    "cache_write_tokens": 10,
    "output_tokens": 30,
    "tools.web_search_call": 3,
    "tools.file_search_call": 4,
    "tools.image_generation_call": 2,
    "images": 1,
    "sessions": 1,
}
NOW: Final = 1_790_000_000
PRICES: Final = Prices(
    [Price(match="local/m", input=2.0, cached_input=0.5, output=10.0, request=0.01), Price(input=1.0)], "eur"
)


def query(text: str) -> Query:
    return Query(Request({"type": "http", "query_string": text.encode()}))


def report(path: str) -> Report:
    return next(each for each in REPORTS if each.path == path)


def check(result: Mapping[str, Any], form: type[BaseModel]) -> None:
    """Check that a result is one of OpenAI's, with no other fields and the required ones."""
    assert result.keys() <= form.model_fields.keys()
    form.model_validate(result, strict=True)


@pytest.mark.parametrize("path", RESULTS)
def test_result_is_of_the_type_of_openai(path: str) -> None:
    of = report(path)
    for group_by in ([], [name for name in of.groups if name != "metadata"]):
        results = of.results({ADA: dict(FULL), BOB: dict(FULL)}, group_by, PRICES)
        for result in results:
            check(result, RESULTS[path])
        assert len({tuple(result.items()) for result in results}) == len(results)


def test_groups_have_their_fields_and_sums() -> None:
    table: Table = {ADA: dict(FULL), BOB: dict(FULL), ADA._replace(model="local/n"): {"requests": 1}}
    results = report("/usage/completions").results(table, ["user_id"], PRICES)

    assert {each["user_id"]: (each["num_model_requests"], each["input_tokens"]) for each in results} == {
        "ada": (3, 100),
        "bob": (2, 100),
    }
    assert {each["model"] for each in results} == {None}
    [metadata, _] = report("/usage/completions").results(table, ["metadata"], PRICES)
    assert metadata["metadata"] == "x"


def test_user_of_a_tenant_is_named_with_it() -> None:
    [result] = report("/usage/completions").results({ADA._replace(tenant="acme"): dict(FULL)}, ["user_id"], PRICES)
    assert result["user_id"] == "acme/ada"


def test_bucket_without_such_calls_has_no_result() -> None:
    table: Table = {ADA: {"requests": 1, "input_tokens": 1}}
    paths = [of.path for of in REPORTS if of.results(table, [], PRICES)]
    assert paths == ["/usage/completions", "/usage/responses"]


def test_costs_are_those_of_the_first_price_that_matches() -> None:
    table: Table = {ADA: dict(FULL), BOB: dict(FULL)}
    of_ada = (60 * 2.0 + 40 * 0.5 + 30 * 10.0) / 1e6 + 2 * 0.01

    by_user = {each["user_id"]: each["amount"]["value"] for each in costs(table, ["user_id"], PRICES)}
    assert by_user == pytest.approx({"ada": of_ada, "bob": 100 * 1.0 / 1e6})
    [whole] = costs(table, [], PRICES)
    check(whole, types.DataResultOrganizationCostsResult)
    assert whole["amount"] == {"value": pytest.approx(of_ada + 1e-4), "currency": "eur"}
    assert costs(table, [], Prices([], "usd")) == []


def test_report_of_everything_has_the_costs_and_histograms_of_each_group() -> None:
    table: Table = {
        ADA: {**FULL, "first_token_ms.27": 2, "duration_ms.40": 1},
        BOB: {"requests": 1, "duration_ms.12": 3},
    }
    everything = report("/usage/responses")
    results = {each["user_id"]: each for each in everything.results(table, ["user_id"], PRICES)}

    assert results["ada"]["cost"] == {"value": pytest.approx(0.02044), "currency": "eur"}
    assert (results["ada"]["first_token_ms"], results["ada"]["duration_ms"]) == ({"108": 2}, {"1024": 1})
    assert results["bob"]["duration_ms"] == {"8": 3}
    [whole] = everything.results(table, [], Prices([], "usd"))
    assert (whole["cost"], whole["duration_ms"]) == (None, {"8": 3, "1024": 1})


def test_line_items_have_quantities_and_can_be_chosen() -> None:
    results = costs({ADA: dict(FULL)}, ["line_item"], PRICES, ["local/m, output_tokens", "local/m, requests"])

    found = {each["line_item"]: (each["quantity"], each["quantity_unit"]) for each in results}
    assert found == {"local/m, output_tokens": (30.0, "tokens"), "local/m, requests": (2.0, None)}
    for each in results:
        check(each, types.DataResultOrganizationCostsResult)


@given(
    st.dictionaries(
        st.builds(Dimensions, st.just(""), *[st.sampled_from(["", "a", "b"])] * 5),
        st.fixed_dictionaries({"requests": st.integers(1, 9), "input_tokens": st.integers(0, 99)}),
        max_size=20,
    ),
    st.lists(st.sampled_from(report("/usage/completions").groups), unique=True),
)
def test_groups_of_any_usage_add_up_to_it(table: Table, group_by: list[str]) -> None:
    results = report("/usage/completions").results(table, group_by, PRICES)

    assert sum(each["num_model_requests"] for each in results) == sum(each["requests"] for each in table.values())
    assert sum(each["input_tokens"] for each in results) == sum(each["input_tokens"] for each in table.values())
    prices = Prices([Price(input=1e6)], "usd")
    paid = [each for each in group_by if each in COST_GROUPS]
    total = sum(each["amount"]["value"] for each in costs(table, paid, prices))
    assert total == pytest.approx(sum(each["input_tokens"] for each in table.values()))


@pytest.mark.parametrize(
    ("text", "param"),
    [
        ("", "start_time"),
        ("start_time=x", "start_time"),
        ("start_time=1&end_time=-1", "end_time"),
        ("start_time=1&bucket_width=1w", "bucket_width"),
        ("start_time=1&limit=32", "limit"),
        ("start_time=1&limit=0", "limit"),
        ("start_time=1&group_by=size", "group_by"),
        ("start_time=1&group_by[]=model&group_by[]=x", "group_by"),
        ("start_time=1&page=x", "page"),
        ("start_time=1&page=page_zz", "page"),
        ("start_time=1&page=page_fffffffff", "page"),
        ("start_time=1&vector_store_ids=x", "vector_store_ids"),
        (f"start_time=1&models={'m' * 600}", "models"),
        ("start_time=1&batch=maybe", "batch"),
    ],
)
def test_wrong_parameter_is_named(text: str, param: str) -> None:
    with pytest.raises(ApiError) as refused:
        asked(query(text), WIDTHS, report("/usage/completions").groups)
    assert (refused.value.status, refused.value.param) == (400, param)


@pytest.mark.parametrize(
    ("text", "included"),
    [
        ("", True),
        ("&models[]=local/m&models[]=other", True),
        ("&models=other", False),
        ("&user_ids=ada&project_ids=search&api_key_ids=key_1", True),
        ("&user_ids=ada&project_ids=sales", False),
        ("&api_key_ids=key_2", False),
        ("&batch=true", False),
        ("&batch=false", True),
    ],
)
def test_filters_include_what_has_all_their_values(text: str, included: bool) -> None:
    assert asked(query(f"start_time=1{text}"), WIDTHS, ()).counts(ADA) == included


async def pages(text: str) -> list[dict[str, Any]]:
    """Return all pages of an empty store."""
    reading = Reading(MemoryRecords(clock=lambda: NOW), Decoder())
    found: list[dict[str, Any]] = []
    cursor = ""
    while not found or found[-1]["has_more"]:
        question = asked(query(f"{text}{cursor}"), WIDTHS, ())
        found.append(await page_of(question, reading, Seen(None, lambda _: True, ()), lambda *_: []))
        cursor = f"&page={found[-1]['next_page']}"
    types.UsageCompletionsResponse.model_validate(found[0], strict=True)
    return found


@pytest.mark.parametrize(("width", "seconds", "limit"), [("1m", 60, 60), ("1h", 3600, 24), ("1d", 86_400, 7)])
async def test_pages_have_all_buckets_until_now_once(width: str, seconds: int, limit: int) -> None:
    start = NOW - 100 * seconds if width != "1m" else NOW - 3600 * 3
    found = await pages(f"start_time={start}&bucket_width={width}")
    buckets = [bucket for page in found for bucket in page["data"]]

    assert {len(page["data"]) for page in found[:-1]} == {limit}
    assert buckets[0]["start_time"] <= start < buckets[0]["end_time"]
    assert buckets[-1]["start_time"] <= NOW < buckets[-1]["end_time"]
    assert [each["end_time"] for each in buckets[:-1]] == [each["start_time"] for each in buckets[1:]]
    assert {each["end_time"] - each["start_time"] for each in buckets} == {seconds}


async def test_end_is_exclusive_and_nothing_is_after_it() -> None:
    day = NOW // 86_400 * 86_400
    [page] = await pages(f"start_time={day - 3 * 86_400}&end_time={day - 86_400}")
    assert [each["start_time"] for each in page["data"]] == [day - 3 * 86_400, day - 2 * 86_400]
    [empty] = await pages(f"start_time={day + 9 * 86_400}")
    assert (empty["data"], empty["has_more"], empty["next_page"]) == ([], False, None)


async def test_minutes_that_are_not_kept_are_refused() -> None:
    with pytest.raises(ApiError, match="Minutes are kept for 3 days"):
        await pages(f"start_time={NOW - 4 * 86_400}&bucket_width=1m")


@pytest.mark.parametrize(
    ("reader", "tenant", "user", "team", "seen"),
    [
        (ANONYMOUS, "", "ada", "search", True),
        (Owner("ada"), "", "ada", "search", True),
        (Owner("bob"), "", "ada", "search", False),
        (Owner("bob", {"teams": ["search"]}), "", "ada", "search", False),
        (Owner("bob", {"teams": ["search"], "roles": ["lead"]}), "", "ada", "search", True),
        (Owner("bob", {"teams": ["search"], "roles": ["lead"]}), "", "bob", "sales", True),
        (Owner("bob", {"teams": ["sales"], "roles": ["lead"]}), "", "ada", "search", False),
        (Owner("bob", {"roles": ["lead"]}), "", "ada", "", False),
        (Owner("bob", {"roles": ["operator"]}), "", "ada", "search", True),
        (Owner("bob", {"roles": ["operator"]}, "south"), "north", "ada", "search", False),
        (Owner("ada", {}, "south"), "north", "ada", "search", False),
    ],
)
def test_usage_is_seen_by_its_user_their_lead_and_readers(
    reader: Owner, tenant: str, user: str, team: str, *, seen: bool
) -> None:
    visibility = Visibility(Roles(operator={"roles": ["operator"]}, team_lead={"roles": ["lead"]}))
    usage = Dimensions(tenant, user, team, "", "m", "")

    assert visibility.seen_by(reader).shows(usage) == seen
    only = visibility.only_user(reader)
    assert only is None or only == reader
    assert (only is None) >= (seen and user != reader.principal)


@pytest.mark.parametrize(
    ("attributes", "by"),
    [({}, "principal"), ({"teams": ["search"], "roles": ["operator"]}, "tenant"), ({"roles": ["lead"]}, "teams")],
)
def test_usage_under_a_long_name_is_seen_by_those_whose_it_is(attributes: dict[str, list[str]], by: str) -> None:
    visibility = Visibility(Roles(operator={"roles": ["operator"]}, team_lead={"roles": ["lead"]}))

    def user(principal: str, name: str, groups: dict[str, list[str]]) -> Owner:
        teams = {"teams": [name]} if by == "teams" else {}
        return Owner(name if by == "principal" else principal, groups | teams, name if by == "tenant" else "")

    mine, others = "n" * 300 + "1", "n" * 300 + "2"
    response = {"id": "resp_1", "status": "completed", "model": "m"}
    usage = dimensions_of(Ended(response, user("ada", mine, {}), None, 0.0), None)
    assert max(map(len, usage)) == 200
    assert visibility.seen_by(user("bob", mine, attributes)).shows(usage)
    assert not visibility.seen_by(user("bob", others, attributes)).shows(usage)
