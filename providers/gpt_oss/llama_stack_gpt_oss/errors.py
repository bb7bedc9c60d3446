"""What a chat request can be refused for."""


class InvalidRequest(ValueError):  # noqa: N818 -- named as what it is to the client
    """400: the request asks for what gpt-oss cannot do, or contradicts itself. `param` names the field."""

    status_code = 400

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
