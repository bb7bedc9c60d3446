"""Batches need a Files API and a store with transactions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from llama_stack_responses.core.setting_values import WrongConfiguration
from llama_stack_responses.features.batches.opened import open_batches
from llama_stack_responses.features.batches.settings import Batches


@pytest.mark.parametrize(
    ("files", "transactional", "wrong"),
    [(None, True, "needs the API 'files'"), (object(), False, "needs a transactional store")],
)
def test_stack_without_what_batches_need_does_not_start(files: Any, transactional: bool, wrong: str) -> None:
    stack = SimpleNamespace(large_files=files, records=SimpleNamespace(transactional=transactional))
    with pytest.raises(WrongConfiguration, match=wrong):
        open_batches(cast("Any", stack), Batches())
