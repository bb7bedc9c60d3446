"""Which network policies are accepted, and the form in which names are compared."""

from __future__ import annotations

import string
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from pydantic import ValidationError

from llama_stack_responses.features.code.network.domains import matches
from llama_stack_responses.features.code.network.policy import NetworkPolicy, NetworkRules, PolicyRefused
from llama_stack_responses.features.code.network.secrets import Mask, Placeholders, Redaction, SecretForms
from llama_stack_responses.features.code.settings import ContainerNetwork


def accepted(*domains: str, **settings: Any) -> NetworkPolicy:
    rules = NetworkRules(ContainerNetwork(**{"allowed_domains": ["*"], **settings}), {"PATH"})
    policy = rules.accept({"type": "allowlist", "allowed_domains": list(domains)})
    assert policy
    return policy


def secret(**changed: str) -> dict[str, str]:
    return {"domain": "example.com", "name": "API_KEY", "value": "sk-123456789", **changed}


def with_secrets(*secrets: dict[str, str]) -> NetworkPolicy | None:
    rules = NetworkRules(ContainerNetwork(allowed_domains=["*"]), {"PATH"})
    domains = ["example.com", "other.example"]
    return rules.accept({"type": "allowlist", "allowed_domains": domains, "domain_secrets": list(secrets)})


@pytest.mark.parametrize("declared", [None, {"type": "disabled"}])
def test_no_policy_is_no_network(declared: dict[str, str] | None) -> None:
    assert NetworkRules(ContainerNetwork()).accept(declared) is None


@pytest.mark.parametrize(
    ("domain", "host"),
    [
        ("Example.COM", "example.com"),
        ("example.com.", "example.com"),
        ("münchen.de", "xn--mnchen-3ya.de"),
        ("xn--mnchen-3ya.de", "xn--mnchen-3ya.de"),
        ("_dmarc.example.com", "_dmarc.example.com"),
        ("localhost", "localhost"),
    ],
)
def test_domain_is_compared_as_a_host_name(domain: str, host: str) -> None:
    policy = accepted(domain)
    assert (list(policy.hosts), policy.domains) == ([host], (domain,))


@pytest.mark.parametrize(
    "domain",
    [
        *("https://example.com", "example.com:443", "example.com/", "user@example.com", "*.example.com", "*"),
        *(
            "1.2.3.4",
            "0x7f.1",
            "2130706433",
            "127.1",
            "[::1]",
            "::1",
            "127。0。0。1",
            "\uff11\uff12\uff17.0.0.1",
            "1.2.3.4.",
        ),
        *(".", "..", "a..b", ".example.com", "example.com..", "-a.example", "a-.example", "a b", "a\nb", "a\x00b"),
        *("a" * 64 + ".example", ".".join(["a" * 60] * 5), "ⓔxample.com", "%65xample.com"),
    ],
)
def test_other_than_a_domain_is_refused(domain: str) -> None:
    with pytest.raises(PolicyRefused) as refused:
        accepted("example.com", domain)
    assert (refused.value.field, refused.value.code) == ("allowed_domains[1]", "invalid_value")


@pytest.mark.parametrize(
    ("host", "patterns", "matched"),
    [
        ("example.com", ["example.com"], True),
        ("a.example.com", ["example.com"], False),
        ("a.b.example.com", ["*.example.com"], True),
        ("example.com", ["*.example.com"], False),
        ("notexample.com", ["*.example.com"], False),
        ("any.example", ["*"], True),
        ("any.example", [], False),
    ],
)
def test_operator_allows_hosts_by_patterns(host: str, patterns: list[str], *, matched: bool) -> None:
    assert matches(host, patterns) is matched


def test_denied_domain_is_refused_whatever_is_allowed() -> None:
    with pytest.raises(PolicyRefused, match=r"does not allow the domain 'A\.evil\.example'"):
        accepted("A.evil.example", denied_domains="evil.example, *.evil.example")
    with pytest.raises(PolicyRefused, match=r"setting 'code_interpreter\.network\.allowed_domains'"):
        accepted("example.com", allowed_domains=["other.example"])


@pytest.mark.parametrize(
    "pattern",
    [
        *("https://example.com", "example.com:443", "*example.com", "a.*.com", "", "a b", "*.", "example.com.."),
        *("1.2.3.4", "*.1.2.3.4", "0x7f.1", "*.1", "::1", "-", "-a.example", "*.-a.example", "a-.example", "*.*.com"),
        *(".", "a..b", "*..com", "a" * 64 + ".example", ".".join(["a" * 60] * 5)),
    ],
)
def test_pattern_of_the_operator_that_is_no_domain_ends_the_start(pattern: str) -> None:
    with pytest.raises(ValidationError, match="domain such as example"):
        ContainerNetwork(allowed_domains=[pattern])


def test_pattern_of_the_operator_is_compared_as_a_host_name() -> None:
    given = ["Example.COM.", "*.M\u00fcnchen.de", "*", "_dmarc.example.com"]
    expected = ["example.com", "*.xn--mnchen-3ya.de", "*", "_dmarc.example.com"]
    assert ContainerNetwork(allowed_domains=given).allowed_domains == expected
    assert accepted("m\u00fcnchen.de", allowed_domains=["m\u00fcnchen.de"]).hosts == {"xn--mnchen-3ya.de"}


@pytest.mark.parametrize(
    "name",
    [
        *(
            "BASH_ENV",
            "ENV",
            "LD_PRELOAD",
            "LD_X",
            "PYTHONSTARTUP",
            "PYTHONHOME",
            "PERL5OPT",
            "RUBYOPT",
            "NODE_OPTIONS",
        ),
        *("IFS", "PS4", "GIT_SSH_COMMAND", "OPENSSL_CONF", "GCONV_PATH", "BASH_FUNC_ls", "TZ", "LC_ALL"),
    ],
)
def test_secret_with_the_name_of_a_variable_that_programs_read_is_refused(name: str) -> None:
    with pytest.raises(PolicyRefused, match=f"read the variable '{name}' for something else") as refused:
        with_secrets(secret(name=name))
    assert refused.value.field == "domain_secrets[0].name"


@pytest.mark.parametrize(
    "name", ["NODE_AUTH_TOKEN", "PYTHON_API_KEY", "GIT_TOKEN", "LDAP_KEY", "TERMINAL_KEY", "USER_KEY"]
)
def test_secret_may_have_a_name_that_resembles_one_of_these(name: str) -> None:
    policy = with_secrets(secret(name=name))
    assert policy
    assert policy.names_of_secrets() == [name]


@pytest.mark.parametrize(
    ("entries", "field"),
    [
        ([secret(domain="evil.example")], "domain_secrets[0].domain"),
        ([secret(domain="a.example.com")], "domain_secrets[0].domain"),
        ([secret(), secret(name="PATH")], "domain_secrets[1].name"),
        ([secret(name="LD_PRELOAD")], "domain_secrets[0].name"),
        ([secret(name=f"KEY{at}", value="x" * 16_384) for at in range(5)], "domain_secrets"),
        ([secret(), secret(domain="EXAMPLE.com.", value="2")], "domain_secrets[1].name"),
    ],
)
def test_secret_that_cannot_be_used_is_refused(entries: list[dict[str, str]], field: str) -> None:
    with pytest.raises(PolicyRefused) as refused:
        with_secrets(*entries)
    assert refused.value.field == field
    assert "sk-123456789" not in str(refused.value)


def test_policy_tells_names_of_secrets_and_hides_values() -> None:
    policy = with_secrets(secret(), secret(domain="other.example", value="sk-987654321"))
    assert policy
    assert "sk-" not in repr(policy)
    assert policy.sentence() == (
        "The network reaches only these hosts, by HTTP and HTTPS: example.com, other.example. The text $API_KEY in a "
        "header of an HTTPS request to example.com, other.example is replaced by a secret."
    )
    assert policy == with_secrets(secret(domain="other.example", value="sk-987654321"), secret())
    assert policy != with_secrets(secret())


def test_longest_placeholder_is_replaced() -> None:
    placeholders = Placeholders({"KEY": "1", "KEY_TWO": "2"})
    assert placeholders.replaced("$KEY $KEY_TWO ${KEY} $KEY_THREE $$KEY $key") == "1 2 1 $KEY_THREE $1 $key"
    assert Placeholders({}).replaced("$KEY") == "$KEY"


def masked(data: bytes, *values: str, size: int) -> bytes:
    """Return what a mask of these secrets makes of a stream that comes in pieces of this size."""
    mask = Mask(SecretForms(values))
    return b"".join([*(mask.next(data[at : at + size]) for at in range(0, len(data), size)), mask.end()])


@pytest.mark.parametrize("size", [1, 2, 5, 100])
@pytest.mark.parametrize(
    ("values", "data", "shown"),
    [
        (["aabaabaac", "short"], b"aabaabaabaac aabaabaa short aabaabaac", b"aab********* aabaabaa short *********"),
        (["abcabcabc"], b"x abcabcabcabc abcabcab", b"x ************ abcabcab"),
        (["AAAA-BBBB", "BBBB-CCCC"], b"AAAA-BBBB-CCCC BBBB-CCCC AAAA-CCCC", b"************** ********* AAAA-CCCC"),
        (["AAAA-BBBB", "AAAA-BBBB-and-a-tail"], b"AAAA-BBBB-and-a-tail.", b"********************."),
        (
            ['se"cret/1\\2'],
            rb'"se\"cret/1\\2", "se\"cret\/1\\2", se%22cret%2F1%5C2',
            b'"%b", "%b", %b' % (b"*" * 13, b"*" * 14, b"*" * 17),
        ),
    ],
)
def test_mask_hides_all_occurrences_across_pieces(values: list[str], data: bytes, shown: bytes, size: int) -> None:
    assert masked(data, *values, size=size) == shown


@pytest.mark.parametrize(
    "written",
    [
        r"k/\u003ce\u003e\u0026y+'(1)*~",
        r"k/\u003Ce\u003E\u0026y\u002B\u0027(1)*~",
        r"k\/\u003ce\u003e\u0026y+'(1)*~",
        "k/%3Ce%3E%26y%2B%27%281%29%2A~",
        "k%2F%3Ce%3E%26y%2B'(1)*~",
        "k%2f%3ce%3e%26y%2b%27%281%29%2a~",
        "k%2F%3Ce%3E%26y%2B%27%281%29*%7E",
        "k/%3Ce%3E&y+'(1)*~",
    ],
)
def test_mask_hides_a_secret_as_other_languages_escape_it(written: str) -> None:
    data = written.encode()
    assert masked(data, "k/<e>&y+'(1)*~", size=7) == b"*" * len(data)


def test_mask_hides_a_secret_in_the_name_of_a_header() -> None:
    mask = Mask(SecretForms(["sk-CANARY12"]))
    assert mask.header_names([b"x-sk-canary12-y", b"sk-canary1", b"2"]) == [b"x-***********-y", b"sk-canary1", b"2"]
    assert mask.lines([b"", b"sk-CANARY12", b"sk-", b"CANARY12"]) == [b"", b"***********", b"sk-", b"CANARY12"]


@pytest.mark.parametrize("size", [1, 7, 200])
@pytest.mark.parametrize("user", ["", "x", "me", "you:", "~~~~?"])
@pytest.mark.parametrize("encode", [b64encode, urlsafe_b64encode])
def test_mask_hides_a_secret_in_base64_at_each_offset(encode: Callable[[bytes], bytes], user: str, size: int) -> None:
    key = "sk-?~12345678~>>?"
    for tail in ("", "z", "zz"):
        shown = masked(b"Basic " + encode(f"{user}{key}{tail}".encode()) + b" end", key, size=size)
        bits = "".join(
            "?" * 6 if each == "*" else f"{(string.ascii_letters + string.digits).find(each):06b}"
            for each in shown.decode().removeprefix("Basic ").removesuffix(" end")
        )
        first, last = len(user) * 8, (len(user) + len(key)) * 8
        assert bits[first:last] == "?" * (last - first)
    # All of the secret has to be there: a part of it is not confirmed.
    other = encode(f"{user}{key[:-1]}_".encode())
    assert masked(other, key, size=size) == other


@pytest.mark.parametrize("text", ["nothing of it", "sk-1234567", "sk-123456", "c2stMTIz", '"s', "sk-12345678"])
def test_pieces_of_a_masked_stream_do_not_depend_on_the_secret(text: str) -> None:
    mask, data = Mask(SecretForms(["sk-12345678"])), text.encode()
    pieces = [mask.next(data), mask.next(b"." * 50), mask.next(b"x"), mask.end()]
    delay = len(mask.end() + Mask(SecretForms(["sk-12345678"])).next(b"?" * 100)) - 100
    sizes = [len(each) for each in pieces]
    assert sizes == [0, len(data) + 50 + delay, 1, -delay]
    assert delay < 0


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("it is sk-123456789, x", "it is $API_KEY, x"),
        ("sk-123456789-and-more sk-123456789", "$API_KEY$TAIL $API_KEY"),
        ("sk-123456789sk-123456789", "$API_KEY$API_KEY"),
        ("x" * 3, "x" * 3),
    ],
)
def test_hidden_text_has_placeholders(text: str, shown: str) -> None:
    secrets = {"sk-123456789": "$API_KEY", "6789-and-more": "$TAIL", "x": "$SHORT"}
    assert Redaction(secrets).of(text) == shown


@pytest.mark.timeout(60)
def test_secrets_that_repeat_themselves_are_hidden_in_linear_time() -> None:
    values = [
        "a" * 16_000,
        "ab" * 8_000,
        "a" * 8_000 + "b" + "a" * 7_999,
        *("a" * 160 + f"{at:03}" for at in range(90)),
    ]
    secrets = SecretForms(values)
    for data in (b"a" * 200_000, b"ab" * 100_000, b"a" * 7_999 + (b"b" + b"a" * 8_000) * 24):
        [shown] = Mask(secrets).lines([data])
        assert set(shown[16_000:-16_000]) == {ord("*")}
        mask = Mask(secrets)
        assert b"".join([*mask.pieces(data), mask.end()]) == shown


@pytest.mark.parametrize("value", ["aabaabaac", "aabaabaab", "aaaaaaaa", "abcabcabca", "abacabadabac"])
def test_mask_hides_what_a_search_at_each_place_finds(value: str) -> None:
    random = Random(value)
    for _ in range(200):
        data = "".join(random.choice([value, value[:3], value[-4:], value[2:]]) for _ in range(12))
        found = [at for at in range(len(data)) if data.startswith(value, at)]
        places = {place for at in found for place in range(at, at + len(value))}
        shown = "".join("*" if at in places else each for at, each in enumerate(data))
        assert masked(data.encode(), value, size=10) == shown.encode()
