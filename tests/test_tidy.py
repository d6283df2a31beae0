"""The rules of the house that can be read off the source. Each failure names the place and says what to do instead."""

from __future__ import annotations

import ast
import importlib
import re
import struct
import subprocess
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from struct import Struct

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILE_LENGTH_MAX = 500
TEST_FILE_LENGTH_MAX = 800
"""A file of tests is a table of cases, and looser than one of code."""
FUNCTION_LENGTH_MAX = 70

SOURCE_DIRECTORIES = {"shmbroker": "shmbroker", "workers": "shmbroker.workers", "bench": "shmbroker.bench"}

FLOORS = {
    "errors": 0, "limits": 0, "paths": 0, "crash_points": 0, "config": 0, "formats": 0,
    "shm": 1, "storage": 1,
    "core": 2,
    "wire": 3, "front": 3, "workers": 3, "client": 3, "gateway": 3,
    "": 4, "cli": 4, "bench": 4,
}  # fmt: skip
"""An import points down, or stays within its package. "" is ``shmbroker`` itself: what programs import."""

SIDEWAYS_ALLOWED = {
    "limits": {"errors"},
    "paths": {"errors"},
    "crash_points": {"errors"},
    "config": {"errors", "limits", "formats"},
    "formats": {"errors", "limits"},
    "front": {"wire"},
    "client": {"wire"},
    "gateway": {"wire", "client"},
    "workers": {"wire", "gateway"},
    "cli": {"", "bench"},
    "bench": {""},
}
"""Within a floor: who may import whom."""

CLOCK_LOOP_AND_SYSTEM = {"asyncio", "mmap", "os", "selectors", "signal", "socket", "subprocess", "threading", "time"}


@cache
def sources() -> dict[str, Path]:
    """Module name to file, for everything that is installed."""
    found = {}
    for directory, package in SOURCE_DIRECTORIES.items():
        for path in sorted((ROOT / directory).rglob("*.py")):
            parts = path.relative_to(ROOT / directory).with_suffix("").parts
            found[".".join((package, *(part for part in parts if part != "__init__")))] = path
    return found


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def place(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"


def functions_saying(path: Path, word: str) -> list[range]:
    """The lines of the functions in whose text, comments and docstring included, ``word`` occurs."""
    lines = path.read_text().splitlines()
    functions = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    ranges = [range(node.lineno, (node.end_lineno or node.lineno) + 1) for node in functions]
    return [span for span in ranges if any(word in line for line in lines[span.start - 1 : span.stop - 1])]


def package_of(module: str) -> str:
    """The package that a module of ours belongs to: a key of FLOORS."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def imports_of(module: str, path: Path) -> Iterator[tuple[str, ast.AST]]:
    """What a module imports, wherever in it, by full name, down to the module."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module if path.stem == "__init__" else module.rpartition(".")[0]
                base = ".".join([package, base] if base else [package])
                assert node.level == 1, f"{place(path, node)}: write the whole name of another package"
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                yield (whole if whole in sources() else base), node


def dotted(node: ast.AST) -> str:
    """``a.b.c`` of an attribute chain; "" for the parts that are not names."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def report(faults: list[str]) -> None:
    assert not faults, "\n" + "\n".join(faults)


# --- imports --------------------------------------------------------------------------------------------------------


def test_imports_only_point_down() -> None:
    faults = []
    for module, path in sources().items():
        mine = package_of(module)
        assert mine in FLOORS, f"{path.relative_to(ROOT)}: {module} has no floor"
        for imported, node in imports_of(module, path):
            if imported.split(".")[0] != "shmbroker":
                continue
            theirs = package_of(imported)
            assert theirs in FLOORS, f"{place(path, node)}: {imported} has no floor"
            if theirs != mine and FLOORS[theirs] >= FLOORS[mine] and theirs not in SIDEWAYS_ALLOWED.get(mine, ()):
                faults.append(f"{place(path, node)}: {module} (floor {FLOORS[mine]}) imports {imported}"
                              f" (floor {FLOORS[theirs]}); move what both need to a lower floor")  # fmt: skip
    report(faults)


def test_nobody_imports_a_worker() -> None:
    report([
        f"{place(path, node)}: {module} imports {imported}; it is started with python -m, formats/ is its contract"
        for module, path in sources().items()
        for imported, node in imports_of(module, path)
        if imported.startswith("shmbroker.workers.") and not module.startswith("shmbroker.workers")
    ])  # fmt: skip


def test_core_decides_without_clock_loop_or_system() -> None:
    report([
        f"{place(path, node)}: core imports {imported}; take the time, the bytes and the facts as arguments"
        for module, path in sources().items()
        if package_of(module) == "core"
        for imported, node in imports_of(module, path)
        if imported.split(".")[0] in CLOCK_LOOP_AND_SYSTEM
    ])  # fmt: skip


# --- sizes ----------------------------------------------------------------------------------------------------------


def test_files_are_one_noun_long() -> None:
    limits = dict.fromkeys(sources().values(), FILE_LENGTH_MAX)
    limits |= dict.fromkeys((ROOT / "tests").rglob("*.py"), TEST_FILE_LENGTH_MAX)
    report([
        f"{path.relative_to(ROOT)}: {length} lines, more than {limit}; find its second noun and move it out"
        for path, limit in limits.items()
        if (length := len(path.read_text().splitlines())) > limit
    ])  # fmt: skip


def test_functions_fit_a_screen() -> None:
    report([
        f"{place(path, node)}: {node.name} has {length} lines, more than {FUNCTION_LENGTH_MAX}; push work down"
        for path in sources().values()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (length := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LENGTH_MAX
    ])  # fmt: skip


def test_files_open_with_what_they_own() -> None:
    report([
        f"{path.relative_to(ROOT)}: no docstring; say what the file owns, its invariants and who writes"
        for path in sources().values()
        if not ast.get_docstring(tree_of(path))
    ])  # fmt: skip


# --- banned calls ---------------------------------------------------------------------------------------------------

MAPPING_NAME = re.compile(r"mmap|mapping|mapped", re.IGNORECASE)


def mapping_names(tree: ast.Module) -> set[str]:
    """The names that a module binds to mmap.mmap(...)."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and dotted(node.value.func) == "mmap.mmap":
            names |= {dotted(target) for target in node.targets}
    return names


def banned_calls(path: Path) -> Iterator[tuple[ast.Call, str]]:
    mappings = mapping_names(tree_of(path))
    unpublished = functions_saying(path, "published")
    bounded = functions_saying(path, "deadline") + functions_saying(path, "bounded")
    for node in ast.walk(tree_of(path)):
        if not isinstance(node, ast.Call):
            continue
        name = dotted(node.func)
        receiver, _, method = name.rpartition(".")
        if method == "flush" and (receiver in mappings or MAPPING_NAME.search(receiver.rpartition(".")[2])):
            yield node, "mmap.flush holds the interpreter for the whole sync: use os.fdatasync, on a thread"
        if name in {"os.fork", "os.forkpty", "pty.fork"} or any(word.arg == "preexec_fn" for word in node.keywords):
            yield node, "a fork copies locks and threads half-way: start processes with exec (subprocess)"
        if (
            method == "pack_into"
            and "formats" not in path.parts
            and not any(node.lineno in span for span in unpublished)
        ):
            yield (
                node,
                (
                    "struct.pack_into zeroes its target first, other processes see that: use shm.words, or, where the"
                    " bytes are not yet published, say so there"
                ),
            )
        if name == "time.sleep" and "bench" not in path.parts and not any(node.lineno in span for span in bounded):
            yield (
                node,
                (
                    "a sleep is late or early: wait on a doorbell, condition or descriptor; or, between tries that end,"
                    " name the deadline, or say in a comment how they are bounded"
                ),
            )
        if name in {"asyncio.Queue", "queue.Queue"} and not node.args and not node.keywords:
            yield node, "a queue without a bound hides the overload: give maxsize and say what full means"
        to_stderr = any(word.arg == "file" and dotted(word.value) == "sys.stderr" for word in node.keywords)
        if name == "print" and not to_stderr and not {"cli", "bench"} & set(path.parts):
            yield node, "standard output belongs to the command line: log, print to stderr, or return what you know"
        if any(word.arg == "shell" for word in node.keywords):
            yield node, "no shell: pass the words as a list"


def test_banned_calls() -> None:
    report([f"{place(path, node)}: {why}" for path in sources().values() for node, why in banned_calls(path)])


def test_banned_imports() -> None:
    banned = {
        "multiprocessing.shared_memory": "its resource tracker removes segments that others use: use shm.region",
        "pickle": "it runs what it reads: write a format",
    }
    faults = []
    for module, path in sources().items():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom):
                names = {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Import):
                names = {alias.name for alias in node.names}
            else:
                continue
            faults += [
                f"{place(path, node)}: {module} imports {name}; {banned[name]}" for name in names & banned.keys()
            ]
    report(faults)


# --- errors ---------------------------------------------------------------------------------------------------------

BROAD = {"BaseException", "Exception"}
SWALLOWED_SILENTLY = BROAD | {"OSError", "IOError", "ShmbrokerError"}


def caught(handler: ast.ExceptHandler) -> set[str]:
    if handler.type is None:
        return {""}
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return {dotted(kind).rpartition(".")[2] for kind in kinds}


def does_nothing(body: list[ast.stmt]) -> bool:
    return all(
        isinstance(statement, ast.Pass | ast.Continue)
        or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for statement in body
    )


def uses_the_error(handler: ast.ExceptHandler) -> bool:
    """Whether the handler raises, or hands the error, or its traceback, to somebody."""
    nodes = [node for statement in handler.body for node in ast.walk(statement)]
    return any(
        isinstance(node, ast.Raise)
        or (isinstance(node, ast.Name) and node.id == handler.name)
        or (isinstance(node, ast.Attribute) and node.attr in {"exception", "format_exc", "print_exc"})
        for node in nodes
    )


def explained(path: Path, node: ast.ExceptHandler | ast.With) -> bool:
    """Whether a comment stands in the lines of the statement, or in the one before it."""
    lines = path.read_text().splitlines()[max(0, node.lineno - 2) : node.end_lineno]
    return any("#" in line for line in lines)


def swallowing(path: Path) -> Iterator[tuple[ast.AST, str]]:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ExceptHandler):
            kinds = caught(node)
            if "" in kinds:
                yield node, "a bare except also catches the interrupt: name what you expect"
            elif kinds & BROAD and not uses_the_error(node):
                yield node, "a broad except that drops the error: re-raise it, hand it on, or name what you expect"
            elif kinds & SWALLOWED_SILENTLY and does_nothing(node.body) and not explained(path, node):
                yield node, "an error is dropped: name the one that may be, or say in a comment why none matters"
        elif isinstance(node, ast.With):
            calls = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
            calls = [call for call in calls if dotted(call.func).rpartition(".")[2] == "suppress"]
            dropped = {dotted(argument).rpartition(".")[2] for call in calls for argument in call.args}
            if dropped & SWALLOWED_SILENTLY and not explained(path, node):
                yield node, "a broad suppress: name the error that may be, or say in a comment why none matters"


def test_no_error_is_swallowed() -> None:
    report([f"{place(path, node)}: {why}" for path in sources().values() for node, why in swallowing(path)])


# --- drawings -------------------------------------------------------------------------------------------------------

DRAWN_ROW = re.compile(r"(?:^ *|  )(\d+)\s+(\d+)\s+([a-z_]+)(?=[\s,(]|$)", re.MULTILINE)
STRUCT_FIELD = re.compile(r"(\d*)([a-zA-Z])")


def drawn_rows(docstring: str) -> list[tuple[int, int]]:
    """(position, size) of every field that the drawings of a docstring show, in the order of the lines."""
    return [(int(position), int(size)) for position, size, _ in DRAWN_ROW.findall(docstring)]


def field_sizes(record: Struct) -> list[int]:
    sizes = []
    for count, kind in STRUCT_FIELD.findall(record.format.lstrip("<")):
        size = struct.calcsize("<" + kind)
        sizes += [int(count or 1)] if kind == "s" else [size] * int(count or 1)
    return sizes


def is_drawn(sizes: list[int], rows: list[tuple[int, int]]) -> bool:
    """Whether the fields stand side by side somewhere in the drawings, each with its size."""
    return any(
        [size for _, size in run] == sizes and all(here + size == after for (here, size), (after, _) in pairwise(run))
        for start in range(len(rows) - len(sizes) + 1)
        if (run := rows[start : start + len(sizes)])
    )


FORMATS = sorted(path.stem for path in (ROOT / "shmbroker" / "formats").glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("name", FORMATS)
def test_drawings_and_structs_agree(name: str) -> None:
    module = importlib.import_module(f"shmbroker.formats.{name}")
    structs = {key: value for key, value in vars(module).items() if isinstance(value, Struct)}
    if not structs:
        assert name in {"control", "quantities"}, f"{name}: a format without a Struct"
        return
    rows = drawn_rows(module.__doc__ or "")
    undrawn = {
        key: value.format
        for key, value in structs.items()
        if (len(field_sizes(value)) > 1 or "CHECKSUM" in key) and not is_drawn(field_sizes(value), rows)
    }
    assert not undrawn, f"formats/{name}.py: the drawing does not show these fields, side by side: {undrawn}"


def test_the_control_drawing_has_the_words_of_the_module() -> None:
    from shmbroker.formats import control

    drawn = {}
    first = re.compile(r"^\s+(?:word)?\s*(\d+)(?:,\d+)?\s+([a-z_]+)\s")
    for line in (control.__doc__ or "").splitlines():
        if found := first.match(line + " "):
            drawn[found[2].upper()] = int(found[1])
    constants = {
        name: value
        for name, value in vars(control).items()
        if isinstance(value, int) and name.removeprefix("WORD_") in drawn
    }
    assert len(constants) > 10, "the drawing and the constants have no names in common"
    wrong = {name: value for name, value in constants.items() if drawn[name.removeprefix("WORD_")] != value}
    assert not wrong, f"formats/control.py: the drawing shows other words for {wrong}"


# --- documents ------------------------------------------------------------------------------------------------------


def test_every_setting_is_in_tuning_md() -> None:
    from shmbroker.config import KEYS

    text = (ROOT / "tuning.md").read_text()
    missing = [key for key in KEYS if f"`{key}`" not in text]
    assert not missing, f"tuning.md does not say what these settings trade: {missing}"


def test_every_topic_option_is_in_tuning_md() -> None:
    from shmbroker.core.options import KEYS

    text = (ROOT / "tuning.md").read_text()
    missing = [key for key in KEYS if f"`{key}`" not in text]
    assert not missing, f"tuning.md does not say what these topic options trade: {missing}"


def tracked_texts() -> Iterator[tuple[Path, str]]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.is_file():
            yield path, path.read_bytes().decode("utf-8", "replace")


def test_no_path_of_one_machine() -> None:
    words = ["/" + "work/", "/" + "home/", "/" + "farm/", "/" + "root/", "." + "library"]
    report([
        f"{path.relative_to(ROOT)}:{number}: a path of one machine: {word}"
        for path, text in tracked_texts()
        for number, line in enumerate(text.splitlines(), 1)
        for word in words
        if word in line
    ])  # fmt: skip


def test_every_rule_has_its_test() -> None:
    named = {
        int(found[1])
        for path in (ROOT / "tests").rglob("test_*.py")
        for found in re.finditer(r"def test_rule_(\d\d)_", path.read_text())
    }
    missing = set(range(1, 20)) - named
    assert not missing, f"no test is called test_rule_NN_... for the rules {sorted(missing)}"


# --- the checks themselves ------------------------------------------------------------------------------------------

FOUND = {
    "mapping = mmap.mmap(-1, 4096)\nmapping.flush()": "mmap.flush",
    "self.ring_mmap.flush()": "mmap.flush",
    "os.fork()": "exec",
    "subprocess.Popen(words, preexec_fn=prepare)": "exec",
    "HEADER.pack_into(view, 0, 1)": "pack_into",
    "time.sleep(1)": "sleep",
    "waiting = asyncio.Queue()": "bound",
    "print('ready')": "standard output",
    "subprocess.run('ls', shell=True)": "shell",
    "try:\n    work()\nexcept:\n    raise": "bare",
    "try:\n    work()\nexcept Exception:\n    failed = True": "broad",
    "try:\n    work()\nexcept OSError:\n    pass": "dropped",
    "with contextlib.suppress(OSError):\n    work()": "suppress",
}

LEFT_ALONE = [
    "file.flush()",
    "def header(view):\n    # not published before the head is stored\n    HEADER.pack_into(view, 0, 1)",
    "waiting = asyncio.Queue(maxsize=8)",
    "print('worker 1: no', file=sys.stderr)",
    "try:\n    work()\nexcept Exception as error:\n    report(error)",
    "try:\n    work()\nexcept FileNotFoundError:\n    pass",
    "try:\n    work()\nexcept OSError:\n    pass  # the peer is gone: that is what we wanted",
    "with contextlib.suppress(FileNotFoundError):\n    work()",
]


@pytest.mark.parametrize(("source", "why"), FOUND.items())
def test_the_checks_find_what_they_look_for(tmp_path: Path, source: str, why: str) -> None:
    path = tmp_path / "bad.py"
    path.write_text(source)
    assert any(why in text for _, text in [*banned_calls(path), *swallowing(path)])


@pytest.mark.parametrize("source", LEFT_ALONE)
def test_the_checks_leave_the_rest_alone(tmp_path: Path, source: str) -> None:
    path = tmp_path / "good.py"
    path.write_text(source)
    assert [*banned_calls(path), *swallowing(path)] == []


def test_a_drawing_that_is_wrong_is_seen() -> None:
    rows = drawn_rows("    0    8    magic    of it\n    8    4    count\n    12   4    checksum\n")
    assert is_drawn([8, 4], rows)
    assert is_drawn([4], rows)
    assert not is_drawn([8, 8], rows)
    assert not is_drawn([8, 4, 4, 8], rows)
    assert not is_drawn([8, 4], drawn_rows("    0    8    magic\n    12    4    count\n"))
