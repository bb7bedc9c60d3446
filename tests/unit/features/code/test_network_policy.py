"""Which network policies are accepted, and the form in which names are compared."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from llama_stack_responses.features.code.network.policy import NetworkPolicy, NetworkRules, PolicyRefused, matches
from llama_stack_responses.features.code.network.secrets import Mask, Placeholders, hidden
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


@pytest.mark.parametrize("pattern", ["https://example.com", "example.com:443", "*example.com", "a.*.com", "", "a b"])
def test_pattern_of_the_operator_that_is_no_domain_ends_the_start(pattern: str) -> None:
    with pytest.raises(ValidationError, match="domain such as example"):
        ContainerNetwork(allowed_domains=[pattern])


@pytest.mark.parametrize(
    ("entries", "field"),
    [
        ([secret(domain="evil.example")], "domain_secrets[0].domain"),
        ([secret(domain="a.example.com")], "domain_secrets[0].domain"),
        ([secret(), secret(name="PATH")], "domain_secrets[1].name"),
        ([secret(name="LD_PRELOAD")], "domain_secrets[0].name"),
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


@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_mask_hides_secrets_across_pieces(size: int) -> None:
    mask, data = Mask(["aabaabaac", "short"]), b"aabaabaabaac aabaabaa short aabaabaac"
    pieces = [mask.next(data[at : at + size]) for at in range(0, len(data), size)]
    assert b"".join([*pieces, mask.end()]) == b"aab********* aabaabaa short *********"


def test_mask_holds_back_only_what_may_be_a_secret() -> None:
    mask = Mask(["secret-value"])
    assert [mask.next(b"data: secre"), mask.next(b"cy\n"), mask.end()] == [b"data: ", b"secrecy\n", b""]


def test_hidden_text_has_placeholders() -> None:
    assert hidden("it is sk-123456789, x", {"sk-123456789": "$API_KEY", "x": "$SHORT"}) == "it is $API_KEY, x"
