"""Settings of earlier versions are accepted."""

import pytest
from pydantic import ValidationError

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.config.limits import BackgroundWork
from llama_stack_responses.config.services import FileInputs


@pytest.mark.parametrize("name", ["event_log_seconds", "journal_seconds"])
def test_lifetime_of_event_logs_has_new_and_former_name(name: str) -> None:
    assert BackgroundWork.model_validate({name: 30}).event_log_seconds == 30.0
    with pytest.raises(ValidationError):
        BackgroundWork.model_validate({name: -1})


@pytest.mark.parametrize("part", [BackgroundWork, FileInputs])
@pytest.mark.parametrize("name", ["concurrency", "at_once"])
def test_concurrency_has_new_and_former_name(part: type[BackgroundWork | FileInputs], name: str) -> None:
    read = part.model_validate({name: 3, f"{name}_per_user": 2})
    assert (read.concurrency, read.concurrency_per_user) == (3, 2)
    with pytest.raises(ValidationError):
        part.model_validate({name: 0})


@pytest.mark.parametrize("name", ["flush_seconds", "drain_seconds"])
def test_wait_for_clients_has_new_and_former_name(name: str) -> None:
    assert ResponsesConfig.model_validate({name: 3}).flush_seconds == 3.0
    with pytest.raises(ValidationError):
        ResponsesConfig.model_validate({name: 0})
