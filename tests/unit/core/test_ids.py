"""The form of ids that a request names."""

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.ids import check_conversation_id, check_response_id


@pytest.mark.parametrize("after", ["0", "fake_nonexistent_id", "550e8400-e29b-41d4-a716-446655440000", "a" * 64])
def test_id_with_letters_digits_underscores_and_dashes_is_accepted(after: str) -> None:
    assert check_response_id(f"resp_{after}", "response_id") == f"resp_{after}"
    assert check_conversation_id(f"conv_{after}", "conversation") == f"conv_{after}"


@pytest.mark.parametrize(
    "value", ["", "resp", "resp_", "conv_a", "Resp_a", "resp-a", "resp_é", "resp_a/b", "resp_" + "a" * 65]
)
def test_id_of_another_form_is_refused_with_the_form(value: str) -> None:
    with pytest.raises(ApiError) as refused:
        check_response_id(value, "previous_response_id")
    assert (refused.value.status, refused.value.param, refused.value.code) == (
        400,
        "previous_response_id",
        "invalid_value",
    )
    assert str(refused.value) == (
        f"Invalid 'previous_response_id': '{value[:80]}'. Expected an ID that begins with 'resp_', with at most 64 letters, "
        "digits, underscores and dashes after it."
    )
