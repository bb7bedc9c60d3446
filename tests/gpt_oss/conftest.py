"""Checkpoints that several tests read."""

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import torch

from llama_stack_gpt_oss.engine.kernels import torch_ops
from llama_stack_gpt_oss.vocabulary import Vocabulary, read_vocabulary
from tests.support import parallel, selection
from tests.support.failures import print_failures
from tests.support.leaks import report_leaks

from .support.checkpoints import Size, random_tensors, write_hugging_face, write_original
from .support.engines import DecodedOnce
from .support.vocabulary import write_tokenizer

# Triton reads this when a kernel is defined: without a GPU, kernels run in its interpreter.
os.environ["TRITON_INTERPRET"] = "1"

# The same examples in every run, without a deadline for busy machines.
hypothesis.settings.load_profile("ci")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that select tests by the day, and that take files from a queue."""
    selection.add_option(parser)
    parallel.add_option(parser)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Print failures as they happen, last, since pytest's own reporter has to be there; speed up the interpreter."""
    from benchmarks.gpt_oss import interpreter  # after TRITON_INTERPRET is set

    interpreter.speed_up()
    print_failures(config)
    report_leaks(config)
    selection.select_by_day(config)
    parallel.run_queue(config)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Small matrices are slower on several threads, and far slower while other processes use the cores."""
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def experts_decoded_once() -> Iterator[None]:
    """For modules that run many steps of models in plain torch, and whose subject is not a step's arithmetic."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_ops, "mxfp4", DecodedOnce())
        yield


@pytest.fixture(scope="session")
def size() -> Size:
    return Size()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, size: Size) -> Path:
    return write_hugging_face(tmp_path_factory.mktemp("hugging-face") / "tiny", random_tensors(size), size)


@pytest.fixture(scope="session")
def original_checkpoint(tmp_path_factory: pytest.TempPathFactory, size: Size) -> Path:
    return write_original(tmp_path_factory.mktemp("published") / "tiny" / "original", random_tensors(size), size)


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return read_vocabulary(folder)
