"""The host's file processors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from io import BytesIO
from typing import Any, Final

from fastapi import HTTPException, UploadFile
from starlette.datastructures import Headers

from ..concurrency.offloading import in_own_thread
from ..core.errors import ApiError
from ..documents.document import Document, Processor, Unreadable
from ..logs import get_logger
from .platform import ProcessFileRequest

logger = get_logger(__name__)

_MAX_THREADS: Final = 8
"""Maximum files that a processor of the host may work on in this process, including those past their time limit."""

_OURS: Final = "inline::pypdf"
"""A processor without use here: it reads PDFs with the same library, but on llama-stack in the serving event loop."""


def file_processor(processors: Any | None) -> Processor | None:
    """Return the host's file processor, if the stack has one that supports more than this package."""
    if processors is None or processors.__provider_spec__.provider_type == _OURS:
        return None
    return HostFileProcessor(processors)


class HostFileProcessor:
    """Reads files with the host's processor.

    Args:
        processors: the host's implementation of its file processors API.

    Attributes:
        keeps: whether the host runs it as a job, whose file and result it stores for a while.
    """

    def __init__(self, processors: Any) -> None:
        self._processors = processors
        spec = processors.__provider_spec__
        # OGX runs its own processors in separate processes.
        self.keeps = getattr(spec, "execution_mode", "") == "worker"
        self._threads = _OwnThreads(_MAX_THREADS)
        self._blocks = spec.provider_type.startswith("inline::") and not self.keeps

    async def text(self, document: Document) -> str:
        """Return the text of a file.

        Raises:
            Unreadable: the host cannot read it.
            ApiError: 503 if the processor is busy.
        """
        try:
            if self._blocks:
                answer = await self._threads.run(lambda: asyncio.run(self._processed(document)))
            else:
                answer = await self._processed(document)
        except HTTPException as error:
            raise Unreadable(f"could not be read: {error.detail}") from error
        except ApiError:
            raise
        except Exception as error:
            logger.warning("host file processor failed (%s)", type(error).__name__)
            raise Unreadable(f"could not be read ({type(error).__name__}).") from error
        return "\n".join(chunk.content for chunk in answer.chunks if isinstance(chunk.content, str))

    async def _processed(self, document: Document) -> Any:
        headers = Headers({"content-type": document.media_type or "application/octet-stream"})
        file = UploadFile(
            BytesIO(document.content), size=len(document.content), filename=document.name, headers=headers
        )
        return await self._processors.process_file(ProcessFileRequest(), file)


class _OwnThreads:
    """Runs each call in its own thread. A call that never returns blocks neither a shared thread pool nor the shutdown.

    Args:
        max_threads: maximum threads, including those whose result is no longer awaited.
    """

    def __init__(self, max_threads: int) -> None:
        self._max_threads = max_threads
        self._running = 0
        self._lock = threading.Lock()

    async def run[Result](self, work: Callable[[], Result]) -> Result:
        """Run `work` in a thread, and return its result or raise its exception.

        Raises:
            ApiError: 503 if all threads are in use.
        """
        with self._lock:
            if self._running >= self._max_threads:
                message = "The file processor of this stack is busy with other files. Try again later."
                raise ApiError(503, message, retry_after=60)
            self._running += 1

        def counted() -> Result:
            try:
                return work()
            finally:
                with self._lock:
                    self._running -= 1

        return await in_own_thread(counted)
