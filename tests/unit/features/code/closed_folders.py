"""Use a container whose code takes all permissions from its files and folders; print the results as JSON.

python -m tests.unit.features.code.closed_folders FOLDER IN_MEMORY
"""

import asyncio
import json
import os
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import ANONYMOUS
from llama_stack_responses.features.code.containers.entries import (
    ContainerEntry,
    Containers,
    delete_file,
    files,
    open_file,
    write_file,
)
from llama_stack_responses.features.code.sandbox.volume import DiskVolume
from tests.unit.features.code.test_container import BOUNDS, admission, jail, volumes

CLOSE = """
import os
open("a", "w").write("x" * 1_000)
os.mkdir("d")
open("d/b", "w").write("y" * 100_000)
for each in ("a", "d/b", "d", "/mnt/data"):
    os.chmod(each, 0)
"""
FILL = """
import os
os.makedirs("e", exist_ok=True)
open("e/c", "w").write("z" * 20_000_000)
os.chmod("e", 0)
import time
time.sleep(20)
"""


async def used(entry: ContainerEntry) -> dict[str, Any]:
    """Return what the container's routes and calls give after its code has closed its folders."""
    container = entry.container
    assert not (await container.run(CLOSE)).failed
    found: dict[str, Any] = {"user": os.getuid()}
    try:
        found["uploaded"] = (await write_file(entry, "new", BytesIO(b"new"))).path
    except ApiError as error:
        found["uploaded"] = error.message
    contents = {}
    for file in await files(entry):
        opened = await open_file(entry, file)
        if opened:
            with opened[0] as content:
                contents[file.path] = len(content.read())
    found["contents"] = contents
    found["used"] = container.volume.used()[0] > 100_000
    [inner] = [each for each in await files(entry) if each.name == "b"]
    await container.run("import os; os.chmod('d', 0o500)")
    found["deleted"] = [await delete_file(entry, inner) for _ in range(2)]
    await container.run("import os; os.chmod('/mnt/data', 0)")
    await container.kill()
    found["after"] = (await container.run("print('here')")).printed
    if isinstance(container.volume, DiskVolume):
        found["filled"] = (await container.run(FILL)).stopped
    return found


async def main(folder: Path, *, in_memory: bool) -> dict[str, Any]:
    containers = Containers(
        jail(), BOUNDS, volumes(in_memory=in_memory), folder, idle_seconds=60, admission=admission(2, 3)
    )
    found = await used(await containers.create(ANONYMOUS))
    await containers.close()
    return found


if __name__ == "__main__":
    place = Path(sys.argv[1])
    found = asyncio.run(main(place, in_memory=sys.argv[2] == "True"))
    print(json.dumps({**found, "left": [each.name for each in place.iterdir()]}))
