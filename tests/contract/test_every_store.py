"""The `every_store` mark: a test is fixed on the stores of this package; without it, only on those without a server."""

import pytest

from tests.contract.backends import EMBEDDED, FIXED, Backend


@pytest.mark.every_store
def test_test_with_every_store_mark_is_fixed_on_own_stores(backend: Backend, request: pytest.FixtureRequest) -> None:
    extended = request.node.get_closest_marker("extended") is not None
    assert extended == (backend.name not in FIXED)


def test_test_without_mark_is_fixed_on_embedded_backends(backend: Backend, request: pytest.FixtureRequest) -> None:
    extended = request.node.get_closest_marker("extended") is not None
    assert extended == (backend.name not in EMBEDDED)


@pytest.mark.needs("own_clock")
def test_test_that_no_embedded_backend_can_run_is_fixed(backend: Backend, request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("extended") is None
