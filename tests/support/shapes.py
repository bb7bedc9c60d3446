"""Whether an answer has the form of a JSON value that the documentation shows.

`"..."` as a name in a shown object stands for further fields. A shown `null`, empty list or empty object says nothing of
its content.
"""

from typing import Any, Final

MORE: Final = "..."


def differences(shown: Any, answer: Any, path: str = "$") -> list[str]:
    """Return where the answer has other fields or other types than what is shown."""
    if shown is None or answer is None:
        return []
    if isinstance(shown, dict) and isinstance(answer, dict):
        return _of_objects(shown, answer, path)
    if isinstance(shown, list) and isinstance(answer, list):
        return _of_lists(shown, answer, path)
    return [] if _kind(shown) == _kind(answer) else [f"{path} is {_kind(answer)}, shown as {_kind(shown)}"]


def _of_objects(shown: dict[str, Any], answer: dict[str, Any], path: str) -> list[str]:
    if not shown:
        return []
    names = shown.keys() - {MORE}
    found = [f"{path}.{name} is shown, and is not there" for name in sorted(names - answer.keys())]
    if MORE not in shown:
        found += [f"{path}.{name} is not shown" for name in sorted(answer.keys() - names)]
    for name in sorted(names & answer.keys()):
        found += differences(shown[name], answer[name], f"{path}.{name}")
    return found


def _of_lists(shown: list[Any], answer: list[Any], path: str) -> list[str]:
    """Each element has the form of the shown one that is most like it."""
    found: list[str] = []
    for index, each in enumerate(answer if shown else ()):
        fewest = min((differences(one, each, f"{path}[{index}]") for one in shown), key=len)
        found += fewest
    return found


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    return "number" if isinstance(value, int | float) else type(value).__name__
