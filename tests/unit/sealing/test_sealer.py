"""A sealed value opens only in the context that it was sealed for, and is noise otherwise."""

from __future__ import annotations

from base64 import b64encode, urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.core.owner import ANONYMOUS, Owner
from llama_stack_responses.sealing.sealer import Sealer, Unopened

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
ANNA = Owner("anna", {"teams": ["search"]}, "north")


@dataclass(frozen=True)
class Context:
    """The owner and purpose that something is sealed for."""

    purpose: str = "keys"
    owner: Owner = ANNA
    about: str = "resp_1"

    def seal(self, value: bytes, *secrets: bytes) -> str:
        return Sealer(secrets).seal(value, purpose=self.purpose, owner=self.owner, about=self.about)

    def open(self, seal: str, *secrets: bytes) -> bytes:
        return Sealer(secrets).open(seal, purpose=self.purpose, owner=self.owner, about=self.about)


HERE = Context()
ELSEWHERE = {
    "another purpose": replace(HERE, purpose="reasoning"),
    "another owner": replace(HERE, owner=Owner("bert", tenant="north")),
    "another tenant": replace(HERE, owner=Owner("anna", tenant="south")),
    "anonymous": replace(HERE, owner=ANONYMOUS),
    "cut elsewhere": replace(HERE, owner=Owner("nna", tenant="northa")),
    "another thing": replace(HERE, about="resp_2"),
    "no thing": replace(HERE, about=""),
}


@given(st.binary(max_size=200))
def test_sealed_value_opens_in_same_context(value: bytes) -> None:
    seal = HERE.seal(value, OLD)
    assert HERE.open(seal, OLD) == value
    assert seal.isascii()
    assert replace(HERE, owner=Owner("anna", {"teams": ["sales"]}, "north")).open(seal, OLD) == value


def test_seal_reveals_nothing() -> None:
    seals = {HERE.seal(b"the same secret value", OLD) for _ in range(100)}
    assert len(seals) == 100
    assert not any(b"secret" in urlsafe_b64decode(seal) for seal in seals)


@pytest.mark.parametrize("there", ELSEWHERE)
def test_seal_does_not_open_in_other_context(there: str) -> None:
    seal = HERE.seal(b"value", OLD)
    with pytest.raises(Unopened, match="another user or purpose"):
        ELSEWHERE[there].open(seal, OLD)


def test_first_secret_seals_and_every_secret_opens() -> None:
    before = HERE.seal(b"value", OLD)
    rotated = HERE.seal(b"value", NEW, OLD)
    assert HERE.open(before, NEW, OLD) == HERE.open(rotated, NEW, OLD) == HERE.open(rotated, NEW) == b"value"
    with pytest.raises(Unopened, match="does not have"):
        HERE.open(before, NEW)
    with pytest.raises(Unopened, match="does not have"):
        HERE.open(before)


def test_every_changed_byte_is_detected() -> None:
    data = urlsafe_b64decode(HERE.seal(b"value", OLD))
    for index in range(len(data)):
        changed = bytearray(data)
        changed[index] ^= 1
        with pytest.raises(Unopened):
            HERE.open(urlsafe_b64encode(bytes(changed)).decode(), OLD)
    for length in range(len(data)):
        with pytest.raises(Unopened):
            HERE.open(urlsafe_b64encode(data[:length]).decode(), OLD)


@pytest.mark.parametrize("around", ["{}A", "{}=", " {}", "{}\n", "{}!"])
def test_seal_with_extra_characters_is_refused(around: str) -> None:
    for value in (b"value", b"value1", b"value12"):
        with pytest.raises(Unopened):
            HERE.open(around.format(HERE.seal(value, OLD)), OLD)


@pytest.mark.parametrize(
    "secret", ["", "short", b64encode(bytes(31)).decode(), b64encode(bytes(33)).decode(), "=" * 44, "\u20ac" * 44]
)
def test_invalid_secret_is_refused_without_showing_it(secret: str) -> None:
    with pytest.raises(ValidationError) as refused:
        ResponsesConfig.model_validate({"secrets": [b64encode(OLD).decode(), secret]})
    assert "openssl rand -base64 32" in str(refused.value)
    assert not secret or secret not in str(refused.value)


def test_unset_variable_is_ignored_as_secret() -> None:
    config = ResponsesConfig.model_validate({"secrets": [None, b64encode(NEW).decode()]})
    assert config.secret_bytes == [NEW]


def test_secrets_are_decoded_from_base64_and_hidden() -> None:
    config = ResponsesConfig.model_validate({"secrets": [b64encode(each).decode() for each in (NEW, OLD)]})
    assert config.secret_bytes == [NEW, OLD]
    assert b64encode(NEW).decode() not in repr(config)
    assert ResponsesConfig().secret_bytes == []


@given(st.text())
def test_arbitrary_text_is_refused_as_seal(text: str) -> None:
    with pytest.raises(Unopened):
        HERE.open(text, OLD)
