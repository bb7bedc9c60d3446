"""Settings of earlier versions are accepted."""

import pytest
from pydantic import ValidationError

from llama_stack_responses.config.limits import BackgroundWork


@pytest.mark.parametrize("name", ["event_log_seconds", "journal_seconds"])
def test_lifetime_of_event_logs_has_new_and_former_name(name: str) -> None:
    assert BackgroundWork.model_validate({name: 30}).event_log_seconds == 30.0
    with pytest.raises(ValidationError):
        BackgroundWork.model_validate({name: -1})
