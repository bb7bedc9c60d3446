"""Errors of chat requests."""


class InvalidRequest(ValueError):  # noqa: N818 -- named for what the client sees
    """400: the request is contradictory, or gpt-oss does not support it. `param` names the field."""

    status_code = 400

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
