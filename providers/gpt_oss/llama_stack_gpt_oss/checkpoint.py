"""The local copy of the checkpoint."""

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from .engine.errors import CheckpointError

# The layout for transformers. `original/` and `metal/` contain copies of the same weights.
WANTED = ["*.json", "*.safetensors"]
NOT_WANTED = ["original/*", "metal/*"]


def local_folder(checkpoint: str) -> Path:
    """Return the checkpoint's folder; download it from the hub if needed. Raises CheckpointError."""
    folder = Path(checkpoint).expanduser()
    if folder.is_dir():
        return folder
    if checkpoint.startswith(("/", "~", ".")) or checkpoint.count("/") != 1:
        raise CheckpointError(
            f"{checkpoint} is neither a folder on this machine nor a hub name such as openai/gpt-oss-20b"
        )
    try:
        return Path(snapshot_download(checkpoint, allow_patterns=WANTED, ignore_patterns=NOT_WANTED))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise CheckpointError(
            f"{checkpoint} is not a folder here and cannot be fetched from the hub ({reason}): download it elsewhere"
            " and give its folder"
        ) from error
