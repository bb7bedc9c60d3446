"""Checkpoints that several tests read."""

from pathlib import Path

import pytest

from .support.checkpoints import Size, random_tensors, write_hugging_face, write_original


@pytest.fixture(scope="session")
def size() -> Size:
    return Size()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, size: Size) -> Path:
    return write_hugging_face(tmp_path_factory.mktemp("hugging-face") / "tiny", random_tensors(size), size)


@pytest.fixture(scope="session")
def original_checkpoint(tmp_path_factory: pytest.TempPathFactory, size: Size) -> Path:
    return write_original(tmp_path_factory.mktemp("published") / "tiny" / "original", random_tensors(size), size)
