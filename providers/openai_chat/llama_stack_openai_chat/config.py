"""The configuration of one model server."""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import SplitResult, urlsplit

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OF_BODIES: Final = frozenset({"content-length", "content-type", "transfer-encoding"})

_STRICT: Final = ConfigDict(extra="forbid", populate_by_name=True, hide_input_in_errors=True)
"""Unknown names are errors, so that a misspelt option is noticed. A refused value may be a key."""

Seconds = Annotated[float, Field(gt=0)]


def check_header(value: str) -> str:
    """Return a header value, if it is one line of ASCII.

    Raises:
        ValueError: it is not, and could inject other headers.
    """
    if not (value.isascii() and value.isprintable()):
        raise ValueError("A key or a header for the model server has characters that a header cannot have.")
    return value


class Tls(BaseModel):
    """TLS settings: verification of the model server, and the client certificate."""

    model_config = _STRICT

    verify: bool | Path = Field(True, description="whether its certificate is checked; or a file with the authorities")
    client_cert: Path | None = Field(None, description="client certificate that the model server requires")
    client_key: Path | None = Field(None, description="key of that certificate")
    min_version: Literal["TLSv1.2", "TLSv1.3"] = Field("TLSv1.2", description="oldest version: TLSv1.2 or TLSv1.3")
    ciphers: list[str] | None = Field(None, description="the only ciphers of TLS 1.2, by OpenSSL's names")

    @field_validator("verify", "client_cert", "client_key")
    @classmethod
    def _is_there(cls, value: bool | Path | None) -> bool | Path | None:
        if isinstance(value, Path) and not (value := value.expanduser()).is_file():
            raise ValueError(f"there is no file {value}")
        return value

    @field_validator("ciphers")
    @classmethod
    def _are_known(cls, value: list[str] | None) -> list[str] | None:
        if value is not None:
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).set_ciphers(":".join(value))
            except ssl.SSLError:
                raise ValueError(f"none of {value} is a cipher that OpenSSL has") from None
        return value

    @model_validator(mode="after")
    def _come_together(self) -> Tls:
        if (self.client_cert is None) != (self.client_key is None):
            raise ValueError("client_cert and client_key must be set together")
        return self


class Timeouts(BaseModel):
    """Timeouts of connecting and reading."""

    model_config = _STRICT

    connect: Seconds = Field(10.0, description="seconds until a connection is open, TLS included")
    read: Seconds = Field(600.0, description="seconds of silence before the first byte, and between any two")


class Proxy(BaseModel):
    """An explicit proxy. Without it, the environment's HTTP_PROXY, HTTPS_PROXY and NO_PROXY apply."""

    model_config = _STRICT

    url: str = Field(description="address of the proxy", examples=["http://proxy.internal:3128"])


class Network(BaseModel):
    """Network settings of the model server."""

    model_config = _STRICT

    tls: Tls = Field(default_factory=Tls)
    timeout: Timeouts = Field(default_factory=Timeouts)
    proxy: Proxy | None = None
    headers: dict[str, str] = Field(
        default_factory=dict, description="headers of every request; the host logs them, so put no keys here"
    )
    idle_seconds: Seconds = Field(
        60.0, description="seconds after which an idle connection is closed, of which 256 are kept"
    )

    @field_validator("headers")
    @classmethod
    def _are_headers(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if not _TOKEN.fullmatch(name):
                raise ValueError(f"'{name}' is not a header name")
            if name.lower() in _OF_BODIES:
                raise ValueError(f"'{name}' describes the body of a request, which differs between requests")
            check_header(text)
        return value

    @field_validator("timeout", mode="before")
    @classmethod
    def _one_number_is_both(cls, value: Any) -> Any:
        return {"connect": value, "read": value} if isinstance(value, int | float) else value


def _has_valid_port(address: SplitResult) -> bool:
    try:
        return address.port != 0
    except ValueError:  # not a number, or too large
        return False


def _without_nulls(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: _without_nulls(each) for name, each in value.items() if each is not None}


class OpenAIChatConfig(BaseModel):
    """One OpenAI-compatible model server. The option names are those of the host's own providers."""

    model_config = _STRICT

    base_url: str = Field(description="address of the model server, with the /v1")
    api_key: SecretStr | None = Field(
        None,
        validation_alias=AliasChoices("api_key", "api_token"),
        description="key of the model server; a key sent with a request overrides it",
    )
    allowed_models: list[str] | None = Field(None, description="the only models that are listed and served; null: all")
    refresh_models: bool = Field(True, description="whether the models are listed periodically, not only at the start")
    embedding_models: dict[str, int] = Field(
        default_factory=dict, description="models that embed, with the length of their vectors"
    )
    extra_body: dict[str, Any] = Field(
        default_factory=dict, description="fields of every request that does not set them itself"
    )
    max_retries: int = Field(0, ge=0, description="how often a request that failed before its answer is retried")
    network: Network = Field(default_factory=Network)

    @field_validator("base_url")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        if not value.startswith(("http://", "https://")):
            raise ValueError(f"'{value}' does not begin with http:// or https://")
        address = urlsplit(check_header(value))
        named = address.hostname and address.username is None and not (address.query or address.fragment)
        if not named or not _has_valid_port(address):
            raise ValueError("it has to be of the form https://HOST:PORT/PATH; a key goes into 'api_key'")
        return value.rstrip("/")

    @field_validator("api_key")
    @classmethod
    def _empty_is_none(cls, value: SecretStr | None) -> SecretStr | None:
        return value if value and value.get_secret_value() else None

    @field_validator("embedding_models", mode="before")
    @classmethod
    def _text_is_read(cls, value: Any) -> Any:
        # An environment variable has `nomic-embed-text=768,other=384`; an unset one becomes null.
        if value is None:
            return {}
        if not isinstance(value, str):
            return value
        entries = [entry.strip().rpartition("=") for entry in value.split(",") if entry.strip()]
        if any(not name for name, _, _ in entries):
            raise ValueError(f"'{value}' has a model without the length of its vectors, as in nomic-embed-text=768")
        return {name: length for name, _, length in entries}

    @field_validator("network", mode="before")
    @classmethod
    def _nothing_is_the_default(cls, value: Any) -> Any:
        # As with the host's own providers: an unset environment variable becomes null.
        return {} if value is None else _without_nulls(value)


OWN_KEY: Final = "openai_chat_api_key"
"""The field of a request's provider data for a user's own key of this provider's model server."""


class OwnKey(BaseModel):
    """The provider data of a user with a key, which the host also uses to list this user's models."""

    openai_chat_api_key: SecretStr
