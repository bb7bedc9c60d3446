"""The installed wheel works outside the checkout and can start an engine."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

PROJECT = Path(__file__).parents[2] / "providers" / "gpt_oss"
CODE = """
import sys
from pathlib import Path
import llama_stack_gpt_oss
from llama_stack_gpt_oss.provider import get_provider_spec
from llama_stack_gpt_oss.process.client import EngineClient
from llama_stack_gpt_oss.process.settings import EngineSettings
assert Path(llama_stack_gpt_oss.__file__).is_relative_to(sys.argv[1]), llama_stack_gpt_oss.__file__
print(get_provider_spec().provider_type)
client = EngineClient(EngineSettings(folder=sys.argv[2], checkpoint=sys.argv[3], device="cpu", context=256))
print(client.start().context)
"""


def test_wheel_serves_outside_checkout(tmp_path: Path, checkpoint: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=PROJECT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    assert (installed / "llama_stack_gpt_oss" / "py.typed").is_file()
    # Before the checkout, which an editable install adds to the end of the path.
    env = {**os.environ, "PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-c", CODE, str(installed), str(tmp_path / "state"), str(checkpoint)]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["inline::gpt-oss", "256"]
