"""Which domains the code in a container may reach, and which secrets are sent to them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ..settings import ContainerNetwork
from .domains import host_of_domain, matches

_OF_PROGRAMS: Final = re.compile(
    # the dynamic loader and the C library
    "LD_.*|_RLD.*|LC_.*|MALLOC_.*|GCONV_PATH|GETCONF_DIR|GLIBC_TUNABLES|HOSTALIASES|LANGUAGE|LOCALDOMAIN|LOCPATH|"
    "NLSPATH|RES_OPTIONS|TMPDIR|TZ|TZDIR|"
    # shells and terminals
    "BASH_ENV|BASH_FUNC_.*|BASHOPTS|SHELLOPTS|ENV|IFS|PS[0-4]|CDPATH|GLOBIGNORE|PROMPT_COMMAND|POSIXLY_CORRECT|OPTIND|"
    "PWD|OLDPWD|SHELL|ZDOTDIR|FPATH|NULLCMD|READNULLCMD|TERM|TERMCAP|TERMINFO.*|TERMPATH|USER|LOGNAME|"
    # interpreters
    "PYTHON[A-Z0-9]+|PERL[A-Z0-9]+|PERLIO_DEBUG|RUBY[A-Z]+|NODE_OPTIONS|NODE_PATH|NODE_V8_COVERAGE|CLASSPATH|"
    "JAVA_TOOL_OPTIONS|JDK_JAVA_OPTIONS|_JAVA_OPTIONS|"
    # programs that others start, and their settings
    "PAGER|EDITOR|VISUAL|BROWSER|SSH_ASKPASS|GIT_(CONFIG.*|SSH.*|DIR|WORK_TREE|EXEC_PATH|ASKPASS|EDITOR|PAGER)|"
    "GIT_(PROXY_COMMAND|EXTERNAL_DIFF|TEMPLATE_DIR)|OPENSSL_(CONF|CONF_INCLUDE|ENGINES|MODULES)|SSL_CERT_DIR|CURL_HOME|"
    "PIP_(CONFIG_FILE|INDEX_URL|TARGET)"
)
"""Variables that programs read: with a placeholder in one of them, a program would not start, or do something else.
Those that sudo removes (env.c) are among them.
"""

_SECRETS_CHARACTERS: Final = 2**16
"""Maximum size of all values of secrets together: the proxy searches for them in all that the container receives."""

_OFF: Final = (
    "Containers of this server have no network: omit 'network_policy'. Its operator can allow domains with the setting "
    "'code_interpreter.network.allowed_domains'."
)


class PolicyRefused(Exception):  # noqa: N818 (its message is the whole information)
    """A policy cannot be used.

    Attributes:
        field: the field of the policy that is at fault; empty for the policy itself.
        code: the error's code.
    """

    def __init__(self, message: str, field: str = "", code: str = "invalid_value") -> None:
        super().__init__(message)
        self.field = field
        self.code = code

    def param(self, policy: str) -> str:
        """Return the path of the field, given the path of the policy."""
        return f"{policy}.{self.field}" if self.field else policy


@dataclass(frozen=True, slots=True)
class DomainSecret:
    """A secret that requests to a host may contain.

    Attributes:
        host: the host, in the form of `host_of`.
        name: the name of its placeholder `$NAME`, and of the environment variable that contains the placeholder.
        value: what replaces the placeholder outside the container.
    """

    host: str
    name: str
    value: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """The hosts that a container may reach. Policies that allow the same are equal.

    Attributes:
        domains: the hosts, as the client wrote them.
        hosts: the hosts, in the form of `host_of`.
        secrets: the secrets of some of them.
    """

    domains: tuple[str, ...] = field(compare=False)
    hosts: frozenset[str]
    secrets: frozenset[DomainSecret] = frozenset()

    def names_of_secrets(self) -> list[str]:
        """Return the names of the secrets, sorted."""
        return sorted({secret.name for secret in self.secrets})

    def sentence(self) -> str:
        """Return what a model is told about the network."""
        told = f"The network reaches only these hosts, by HTTP and HTTPS: {', '.join(sorted(self.hosts))}."
        for name in self.names_of_secrets():
            hosts = ", ".join(sorted(secret.host for secret in self.secrets if secret.name == name))
            told += f" The text ${name} in a header of an HTTPS request to {hosts} is replaced by a secret."
        return told


class NetworkRules:
    """Which policies this server accepts.

    Args:
        settings: what the operator allows.
        variables: the environment variables that a container has already.
    """

    def __init__(self, settings: ContainerNetwork, variables: Collection[str] = ()) -> None:
        self._settings = settings
        self._variables = variables

    def accept(self, declared: Mapping[str, Any] | None) -> NetworkPolicy | None:
        """Return the policy that a client declares, in the checked form of `NETWORK_POLICY`; None for no network.

        Raises:
            PolicyRefused: it cannot be used, or allows more than the operator does.
        """
        if declared is None or declared["type"] == "disabled":
            return None
        if not self._settings.allowed_domains:
            raise PolicyRefused(_OFF, code="unsupported_value")
        domains, entries = declared["allowed_domains"], declared.get("domain_secrets", ())
        if sum(len(entry["value"]) for entry in entries) > _SECRETS_CHARACTERS:
            why = f"The values of all secrets together have more than {_SECRETS_CHARACTERS:,} characters."
            raise PolicyRefused(why, "domain_secrets")
        hosts = frozenset(self._allowed(domain, f"allowed_domains[{at}]") for at, domain in enumerate(domains))
        secrets: dict[tuple[str, str], DomainSecret] = {}
        for at, entry in enumerate(entries):
            secret = self._secret(entry, hosts, f"domain_secrets[{at}]")
            if (secret.host, secret.name) in secrets:
                why = f"'{secret.host}' has another secret of the name '{secret.name}'."
                raise PolicyRefused(why, f"domain_secrets[{at}].name")
            secrets[secret.host, secret.name] = secret
        return NetworkPolicy(tuple(domains), hosts, frozenset(secrets.values()))

    def _allowed(self, domain: str, at: str) -> str:
        host = _checked_host(domain, at)
        settings = self._settings
        if not matches(host, settings.allowed_domains) or matches(host, settings.denied_domains):
            raise PolicyRefused(
                f"The operator of this server does not allow the domain '{domain}' for containers: omit it, or ask for "
                "the setting 'code_interpreter.network.allowed_domains'.",
                at,
            )
        return host

    def _secret(self, entry: Mapping[str, str], hosts: Collection[str], at: str) -> DomainSecret:
        name, host = entry["name"], _checked_host(entry["domain"], f"{at}.domain")
        if host not in hosts:
            raise PolicyRefused(f"The domain '{entry['domain']}' is not in 'allowed_domains'.", f"{at}.domain")
        if name in self._variables or _OF_PROGRAMS.fullmatch(name):
            why = f"Programs in the container read the variable '{name}' for something else. Use another name."
            raise PolicyRefused(why, f"{at}.name")
        return DomainSecret(host, name, entry["value"])


def _checked_host(domain: str, at: str) -> str:
    host = host_of_domain(domain)
    if host is None:
        message = f"'{domain}' is not a domain such as 'example.com': without scheme, port, path, wildcard or address."
        raise PolicyRefused(message, at)
    return host
