"""What the engine refuses, each in one sentence that says what to do."""


class EngineError(Exception):
    """Base of what the engine raises on purpose; the text is meant for people."""


class CheckpointError(EngineError):
    """The checkpoint is missing, incomplete, damaged or of another shape."""


class TooLittleMemoryError(EngineError):
    """The weights or the smallest KV store do not fit."""


class RequestError(EngineError):
    """A request that can never run, such as a prompt longer than the context."""


class QueueFullError(EngineError):
    """Too many requests wait already."""
