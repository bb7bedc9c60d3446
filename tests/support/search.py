"""The answers of search services, each in its own JSON form, from `[(url, title, text), ...]`."""

import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, Final
from urllib.parse import quote, urlsplit

type Json = dict[str, Any]
type Found = Sequence[tuple[str, str, str]]


def searxng(query: str, found: Found) -> Json:
    """Return SearXNG's answer to `/search?format=json`."""
    results = [
        {
            "url": url,
            "title": title,
            "content": text,
            "thumbnail": None,
            "engine": "brave",
            "template": "default.html",
            "parsed_url": [*urlsplit(url), ""],
            "img_src": "",
            "priority": "",
            "engines": ["brave"],
            "positions": [place],
            "score": 1 / place,
            "category": "general",
            "publishedDate": None,
        }
        for place, (url, title, text) in enumerate(found, 1)
    ]
    nothing: Json = {"answers": [], "corrections": [], "infoboxes": [], "suggestions": []}
    return {"query": query, "number_of_results": 0, "results": results, **nothing, "unresponsive_engines": []}


def tavily(query: str, found: Found) -> Json:
    """Return Tavily's answer to `/search`."""
    results = [
        {"url": url, "title": title, "content": text, "score": 0.9, "raw_content": None} for url, title, text in found
    ]
    about: Json = {"follow_up_questions": None, "answer": None, "images": []}
    return {"query": query, **about, "results": results, "response_time": 0.8, "request_id": "1"}


def brave(query: str, found: Found) -> Json:
    """Return Brave's answer to `/res/v1/web/search`: all results as pages except the last, which is an FAQ."""
    *pages, (faq_url, faq_title, faq_text) = found
    web = [
        {
            "title": title,
            "url": url,
            "is_source_local": False,
            "description": f"<strong>{text.split()[0]}</strong>{text[len(text.split()[0]) :]}",
            "profile": {"name": title, "url": url, "long_name": urlsplit(url).netloc},
            "language": "en",
            "type": "search_result",
            "subtype": "generic",
            "meta_url": {"scheme": "https", "netloc": urlsplit(url).netloc},
        }
        for url, title, text in pages
    ]
    question, _, answer = faq_text.partition("? ")
    faq = {
        "type": "faq",
        "results": [{"question": f"{question}?", "answer": answer, "title": faq_title, "url": faq_url}],
    }
    main: list[Json] = [{"type": "web", "index": number, "all": False} for number in range(len(web))]
    return {
        "query": {"original": query, "is_navigational": False},
        "mixed": {"type": "mixed", "main": [*main, {"type": "faq", "all": True}], "top": [], "side": []},
        "type": "search",
        "web": {"type": "search", "results": web, "family_friendly": True},
        "faq": faq,
    }


def bing(query: str, found: Found) -> Json:
    """Return Bing's answer to `/v7.0/search`: all results as pages except the last, which is news."""
    *pages, (news_url, news_title, news_text) = found
    value = [
        {
            "id": f"https://api.bing.microsoft.com/api/v7/#WebPages.{number}",
            "name": f"<b>{title}</b>",
            "url": url,
            "isFamilyFriendly": True,
            "displayUrl": url,
            "snippet": text.replace(" & ", " &amp; "),
            "language": "en",
        }
        for number, (url, title, text) in enumerate(pages)
    ]
    news = {"name": news_title, "url": news_url, "description": news_text, "provider": [{"name": "The Times"}]}
    return {
        "_type": "SearchResponse",
        "queryContext": {"originalQuery": query},
        "webPages": {"webSearchUrl": "https://www.bing.com/search", "totalEstimatedMatches": 9, "value": value},
        "news": {"id": "https://api.bing.microsoft.com/api/v7/#News", "value": [news]},
    }


def exa(_: str, found: Found) -> Json:
    """Return Exa's answer to `/search`."""
    results = [
        {
            "id": url,
            "title": title,
            "url": url,
            "publishedDate": "2026-01-01T00:00:00.000Z",
            "author": None,
            "score": 0.3,
            "highlights": [text],
            "highlightScores": [0.5],
        }
        for url, title, text in found
    ]
    return {"requestId": "1", "resolvedSearchType": "neural", "results": results, "costDollars": {"total": 0.005}}


def serply(_: str, found: Found) -> Json:
    """Return Serply's answer to `/v1/search`."""
    results = [{"title": title, "link": url, "description": text, "additional_links": []} for url, title, text in found]
    return {"results": results, "total": len(results), "ts": 0.7, "answer": None}


def nimble(_: str, found: Found) -> Json:
    """Return Nimble's answer to `/v1/search` with the depth `lite`."""
    results = [{"title": title, "url": url, "description": text, "content": ""} for url, title, text in found]
    return {"request_id": "1", "total_results": len(results), "results": results}


SERVICES: Final[Mapping[str, tuple[str, Callable[[str, Found], Json]]]] = {
    "tavily_search": ("api.tavily.com", tavily),
    "brave_search": ("api.search.brave.com", brave),
    "bing_search": ("api.bing.microsoft.com", bing),
    "exa_search": ("api.exa.ai", exa),
    "serply_search": ("api.serply.io", serply),
    "nimble_search": ("sdk.nimbleway.com", nimble),
}
"""The services with a provider in the hosts: the provider's module, and the service's host name."""


def _page(*entries: str) -> bytes:
    return f"<!doctype html><html><head><title>Results</title></head><body>{''.join(entries)}</body></html>".encode()


def duckduckgo(_: str, found: Found) -> bytes:
    """Return DuckDuckGo's page for browsers without scripts."""
    return _page(
        *(
            f'<div class="result"><div class="links_main result__body"><h2 class="result__title"><a href="{escape(url)}">'
            f'{escape(title)}</a></h2><a class="result__snippet" href="{escape(url)}">{escape(text)}</a></div></div>'
            for url, title, text in found
        )
    )


def brave_page(_: str, found: Found) -> bytes:
    """Return Brave's page."""
    return _page(
        *(
            f'<div class="snippet" data-type="web"><a href="{escape(url)}"><div class="title">{escape(title)}</div></a>'
            f'<div class="generic-snippet"><div class="content">{escape(text)}</div></div></div>'
            for url, title, text in found
        )
    )


def mojeek(_: str, found: Found) -> bytes:
    """Return Mojeek's page."""
    entries = "".join(
        f'<li><h2><a href="{escape(url)}">{escape(title)}</a></h2><p class="s">{escape(text)}</p></li>'
        for url, title, text in found
    )
    return _page(f'<ul class="results-standard">{entries}</ul>')


def yahoo(_: str, found: Found) -> bytes:
    """Return Yahoo's page, whose links go through its own redirect."""
    return _page(
        *(
            '<div class="dd relsrch"><div class="compTitle"><a href="https://r.search.yahoo.com/_ylt=A/RV=2/'
            f'RU={quote(url, safe="")}/RK=2/RS=b-"><h3>{escape(title)}</h3></a></div>'
            f'<div class="compText">{escape(text)}</div></div>'
            for url, title, text in found
        )
    )


def wikipedia(query: str, found: Found) -> bytes:
    """Return the answer of Wikipedia's API; for the second request, without a query, an article's introduction."""
    url, title, text = found[0]
    if query:
        return json.dumps([query, [title], [""], [url]]).encode()
    return json.dumps({"batchcomplete": "", "query": {"pages": {"1": {"title": title, "extract": text}}}}).encode()


def grokipedia(_: str, found: Found) -> bytes:
    """Return Grokipedia's suggestions."""
    url, title, text = found[0]
    return json.dumps({"results": [{"slug": url.rpartition("/")[2], "title": title, "snippet": text}]}).encode()


ENGINES: Final[Mapping[str, tuple[str, Callable[[str, Found], bytes]]]] = {
    "duckduckgo": ("html.duckduckgo.com", duckduckgo),
    "brave": ("search.brave.com", brave_page),
    "mojeek": ("www.mojeek.com", mojeek),
    "yahoo": ("search.yahoo.com", yahoo),
    "wikipedia": ("en.wikipedia.org", wikipedia),
    "grokipedia": ("grokipedia.com", grokipedia),
}
"""Search engines as the package `ddgs` reads them: the host name and the answer of each."""
