"""The `one_store` mark: `make test` runs a test on one backend, `make test-all` on each."""

import pytest

from tests.contract.backends import ONE_STORE, Backend


@pytest.mark.one_store
def test_one_store_mark_extends_all_other_backends(backend: Backend, request: pytest.FixtureRequest) -> None:
    extended = request.node.get_closest_marker("extended") is not None
    assert extended == (backend.name != ONE_STORE)


def test_backend_without_one_store_mark_is_in_short_run(backend: Backend, request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("extended") is None
