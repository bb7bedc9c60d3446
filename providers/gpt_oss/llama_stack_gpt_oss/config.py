"""The provider's configuration."""

import os
import re
from pathlib import Path
from typing import Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from .process.settings import EngineSettings

DEVICE: Final = re.compile(r"auto|cpu|cuda(:[0-9]{1,3})?")


class GptOssConfig(BaseModel):
    """One model on one device, or on several of a machine.

    Servers and workers with equal settings and the same `state_dir` share one engine.
    """

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    checkpoint: str = Field(min_length=1, description="The checkpoint's folder, or a hub name (openai/gpt-oss-20b)")
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N; auto: a GPU if there is one")
    dtype: Literal["auto", "bfloat16", "float32"] = Field(
        "auto", description="auto: bfloat16 on a GPU, float32 on a CPU"
    )
    tensor_parallel_size: int = Field(
        1, ge=1, le=8, description="GPUs that compute each step together, from `device` on"
    )
    kv_dtype: Literal["auto", "fp8"] = Field(
        "auto", description="Of the KV cache. auto: that of the weights; fp8: half of bfloat16's memory, less exact"
    )
    memory_share: float = Field(
        0.9, gt=0, le=1, description="Share of the GPU's memory that may be used, by all processes together"
    )
    context_length: int | None = Field(
        None, ge=128, description="Tokens of a request with its answer; default: what fits"
    )
    max_batch: int = Field(64, ge=1, le=1024, description="Maximum number of answers generated at the same time")
    max_queue: int = Field(256, ge=0, description="Maximum number of queued requests; more are refused with 429")
    prefill_tokens: int = Field(
        2048, ge=64, le=16384, description="Tokens that one step computes: more is faster, and less smooth"
    )
    draft_tokens: int = Field(
        0, ge=0, le=15, description="Tokens that one step may draft for an answer and verify; 0: no drafts"
    )
    draft_head: str | None = Field(
        None, min_length=1, description="Folder or hub name of an EAGLE-3 head, which drafts; default: n-grams"
    )
    dependent_launch: bool = Field(
        True, description="Begin a kernel while the one before it ends, on a GPU of compute capability 9.0 or newer"
    )
    stall_seconds: float = Field(
        300, gt=0, description="An engine with work that does not answer or compute for this time is killed"
    )
    state_dir: str = Field("~/.llama-stack-gpt-oss", description="Folder of the engine's socket")

    @field_validator("context_length", mode="before")
    @classmethod
    def _empty_is_default(cls, value: object) -> object:
        return None if value == "" else value

    @field_validator("device")
    @classmethod
    def _device_is_known(cls, value: str) -> str:
        if not DEVICE.fullmatch(value):
            raise ValueError(f"device is auto, cpu, cuda or a GPU by its number such as cuda:1, and not {value!r}")
        return value

    @model_validator(mode="after")
    def _draft_head_drafts(self) -> Self:
        if self.draft_head and not self.draft_tokens:
            raise ValueError("draft_head needs draft_tokens: the number of tokens that it drafts")
        return self

    @model_validator(mode="after")
    def _batch_fits_a_step(self) -> Self:
        if self.prefill_tokens < self.max_batch:
            raise ValueError("prefill_tokens has to be max_batch at least: a step makes a token of every answer")
        return self

    @property
    def model(self) -> str:
        """The model's name: the last part of the checkpoint's path or hub name."""
        return Path(self.checkpoint.rstrip("/")).name

    def engine(self, folder: Path, draft_head: Path | None = None) -> EngineSettings:
        """Return the settings of the engine process, for the local folders of the checkpoint and the draft head."""
        return EngineSettings(
            folder=str(Path(os.path.expandvars(self.state_dir)).expanduser().resolve()),
            checkpoint=str(folder.resolve()),
            device=self.device,
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
            memory_share=self.memory_share,
            context=self.context_length,
            sequences=self.max_batch,
            step_tokens=self.prefill_tokens,
            waiting=self.max_queue,
            drafts=self.draft_tokens,
            tensor_parallel_size=self.tensor_parallel_size,
            draft_head=str(draft_head.resolve()) if draft_head else None,
            dependent_launch=self.dependent_launch,
        )
