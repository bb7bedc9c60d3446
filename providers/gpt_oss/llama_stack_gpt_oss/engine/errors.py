"""The engine's errors. Each message is one sentence with the action to take."""


class EngineError(Exception):
    """Base class of the engine's intended errors; the message is for users."""


class CheckpointError(EngineError):
    """The checkpoint is missing, incomplete, damaged or has other shapes."""


class TooLittleMemoryError(EngineError):
    """The weights or the smallest usable KV cache do not fit in memory."""


class RequestError(EngineError):
    """A request that can never run, such as a prompt longer than the context."""


class QueueFullError(EngineError):
    """The queue is full."""
