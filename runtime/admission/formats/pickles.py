"""What a pickle would import and call, found by walking its opcodes without executing them.

The walk is at least as lenient as Python's unpickler: it may go on where the unpickler would stop, but never the
reverse. So it can walk any bytes, whatever the file is called, and anything that it does not see can't run.
"""

import io
import pickletools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, BinaryIO

from shiplift.runtime.admission.allowed import Name

MAX_OPERATIONS = 50_000_000
_CODES = {ord(code.code): code for code in pickletools.opcodes}
_MAX_TEXT = 1000  # longer texts can't be names
_FETCH_BYTES = 1 << 20
# Where a pickle may begin in other bytes: at the head that protocols 2 and later have, or at the name of a global.
_BEGINNING = re.compile(rb"\x80[\x02-\x05]|[ci][A-Za-z_][\w.]*\n[A-Za-z_]\w*\n")
_HIDDEN_BYTES = 1 << 16  # of a pickle inside other bytes


@dataclass(frozen=True)
class Global:
    """A reference to `module.name`, which the unpickler would import."""

    module: str
    name: str

    @property
    def key(self) -> Name:
        """The reference as a pair."""
        return self.module, self.name

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True)
class PickleCall:
    """A call that the unpickler would make. An unknown argument is None."""

    function: Any
    arguments: tuple[Any, ...] | None


@dataclass(kw_only=True)
class PickleTrace:
    """What one pickle would do. `whole`: it ends with STOP. `headed`: it begins with a protocol of 2 or later.

    `hidden` are the globals of pickles inside its bytes and texts, which only a call to another unpickler would import.
    """

    headed: bool = False
    whole: bool = False
    globals: list[Global] = field(default_factory=list)
    calls: list[PickleCall] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    hidden: list[Global] = field(default_factory=list)

    @property
    def dangerous(self) -> bool:
        """Whether there is anything to judge."""
        return bool(self.globals or self.calls or self.problems or self.hidden)


class _Unknown:
    """A value that the walk does not track."""


class _Made(_Unknown):
    """The result of a call."""


_UNKNOWN, _MADE, _MARK = _Unknown(), _Made(), object()


class _End(Exception):
    """Raised where the unpickler would stop."""


def walk(file: BinaryIO, *, persistent: bool = False) -> PickleTrace:
    """Walks the pickle that begins at the file's position, to its STOP or to where the unpickler would fail.

    `persistent`: the file's reader resolves persistent ids, as torch does for tensors; Python's own reader fails at
    one.
    """
    return _Machine(file, persistent=persistent, searched=True).run()


def _hidden(window: bytes) -> list[Global]:
    """The globals of the pickles that begin in these bytes, if they are installed. Numbers only resemble a pickle."""
    found = []
    for match in _BEGINNING.finditer(window):
        inner = io.BytesIO(window[match.start() : match.start() + _HIDDEN_BYTES])
        trace = _Machine(inner, persistent=False, searched=False).run()
        if trace.headed or (trace.whole and trace.calls):
            found += [name for name in trace.globals if importable(name)]
    return found


def importable(name: Global) -> bool:
    """Whether the top-level package is installed here. Text that only resembles a pickle names none."""
    top = name.module.partition(".")[0]
    try:
        return top in ("__builtin__", "copy_reg", "__main__") or find_spec(top) is not None
    except (ImportError, ValueError, AttributeError):
        return True


class _Machine:
    """The unpickler's stack and memo, with names and calls in place of objects."""

    def __init__(self, file: BinaryIO, *, persistent: bool, searched: bool) -> None:
        self.file = file
        self.persistent = persistent
        self.searched = searched  # for other pickles in its bytes
        self.result = PickleTrace()
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> PickleTrace:
        try:
            for _ in range(MAX_OPERATIONS):
                if self._step():
                    return self.result
            self.result.problems.append(f"it has more than {MAX_OPERATIONS} operations")
        except _End:
            pass
        return self.result

    def _step(self) -> bool:
        code = self.file.read(1)
        operation = _CODES.get(code[0]) if code else None
        if operation is None:
            raise _End
        argument = self._argument(operation)
        if operation.name == "STOP":
            self.result.whole = True
            return True
        action = _ACTIONS.get(operation.name)
        if action:
            action(self, argument)
        else:
            self._generic(operation)
        return False

    def _argument(self, operation: Any) -> bytes:
        if operation.arg is None:
            return b""
        size = operation.arg.n
        if size == pickletools.UP_TO_NEWLINE:
            lines = [self._line() for _ in range(2 if operation.arg.name.endswith("_pair") else 1)]
            return b"\n".join(lines)
        if size >= 0:
            return self._bytes(size)
        width = {pickletools.TAKEN_FROM_ARGUMENT1: 1, pickletools.TAKEN_FROM_ARGUMENT8U: 8}.get(size, 4)
        return self._bytes(int.from_bytes(self._bytes(width), "little"), searched=self.searched)

    def _line(self) -> bytes:
        """The next line; of a long one, only the beginning is kept."""
        line = kept = self.file.readline(_FETCH_BYTES)
        if not line:
            raise _End
        while line and not line.endswith(b"\n"):
            line = self.file.readline(_FETCH_BYTES)
        return kept[:-1]  # Python's unpickler also drops the last byte, whatever it is, at the end of a file

    def _bytes(self, size: int, *, searched: bool = False) -> bytes:
        """The next bytes; of many, only the beginning is kept. `searched`: for pickles in them."""
        kept = window = self.file.read(min(size, _FETCH_BYTES))
        left = size - len(kept)
        while True:
            self.result.hidden += _hidden(window) if searched else ()
            if left <= 0:
                return kept
            chunk = self.file.read(min(left, _FETCH_BYTES))
            if not chunk:
                raise _End
            left -= len(chunk)
            window = window[-_HIDDEN_BYTES:] + chunk

    # --- the stack ---

    def pop(self) -> Any:
        if not self.stack:
            raise _End
        return self.stack.pop()

    def pop_mark(self) -> list[Any]:
        items: list[Any] = []
        while self.stack:
            item = self.stack.pop()
            if item is _MARK:
                return items[::-1]
            items.append(item)
        raise _End

    def remember(self, index: int) -> None:
        if not self.stack:
            raise _End
        self.memo[index] = self.stack[-1]

    def recall(self, index: int) -> None:
        if index not in self.memo:
            raise _End
        self.stack.append(self.memo[index])

    def refer(self, module: str, name: str) -> None:
        reference = Global(module, name)
        if not module.replace(".", "").isidentifier():
            if self.result.headed:
                self.result.problems.append(f"it names {str(reference)[:100]!r}, which is not a name in Python")
            raise _End  # no installed module has such a name
        self.result.globals.append(reference)
        self.stack.append(reference)

    def call(self, function: Any, arguments: Any) -> None:
        known = arguments if isinstance(arguments, tuple) else None
        self.result.calls.append(
            PickleCall(function, None if known is None else tuple(_known(value) for value in known))
        )
        self.stack.append(_MADE)

    def unresolved(self, what: str) -> None:
        self.result.problems.append(what)
        raise _End

    def _generic(self, operation: Any) -> None:
        """Operations that only move values: containers, numbers, marks."""
        before = operation.stack_before
        if pickletools.markobject in before:
            self.pop_mark()
            before = before[: before.index(pickletools.markobject)]
        kept = [self.pop() for _ in before][::-1]  # APPEND, SETITEM and the like leave the container
        for position, _ in enumerate(operation.stack_after):
            self.stack.append(kept[position] if position < len(kept) and _leaves(operation.name) else _UNKNOWN)


def _leaves(name: str) -> bool:
    return name in ("APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS")


def _known(value: Any) -> Any:
    return value if isinstance(value, str | Global) else None


def _text(machine: _Machine, argument: bytes) -> None:
    machine.stack.append(argument.decode(errors="replace") if len(argument) <= _MAX_TEXT else _UNKNOWN)


def _quoted(machine: _Machine, argument: bytes) -> None:
    machine.stack.append(argument.strip(b"'\"").decode("latin-1") if len(argument) <= _MAX_TEXT else _UNKNOWN)


def _global(machine: _Machine, argument: bytes) -> None:
    module, _, name = argument.decode(errors="replace").partition("\n")
    machine.refer(module, name)


def _stack_global(machine: _Machine, _: bytes) -> None:
    name, module = machine.pop(), machine.pop()
    if not (isinstance(name, str) and isinstance(module, str)):
        machine.unresolved("it builds a name at run time")
    machine.refer(module, name)


def _inst(machine: _Machine, argument: bytes) -> None:
    _global(machine, argument)  # Python's unpickler also imports before it looks for the arguments
    function = machine.pop()
    machine.call(function, tuple(machine.pop_mark()))


def _obj(machine: _Machine, _: bytes) -> None:
    items = machine.pop_mark()
    if not items:
        raise _End
    machine.call(items[0], tuple(items[1:]))


def _reduce(machine: _Machine, _: bytes) -> None:
    arguments = machine.pop()
    machine.call(machine.pop(), arguments)


def _newobj_ex(machine: _Machine, _: bytes) -> None:
    machine.pop()
    _reduce(machine, b"")


def _build(machine: _Machine, _: bytes) -> None:
    machine.pop()
    target = machine.pop()
    if isinstance(target, Global):
        machine.result.problems.append(f"it changes {target}")
    machine.stack.append(target)


def _persistent(machine: _Machine, _: bytes) -> None:
    machine.pop()
    _persistent_text(machine, b"")


def _persistent_text(machine: _Machine, _: bytes) -> None:
    if not machine.persistent:
        if machine.result.headed:
            machine.unresolved("it uses persistent ids, which only torch resolves")
        raise _End
    machine.stack.append(_UNKNOWN)


def _extension(machine: _Machine, _: bytes) -> None:
    if machine.result.headed:
        machine.unresolved("it uses an extension code in place of a name")
    raise _End  # no extension is registered


def _proto(machine: _Machine, argument: bytes) -> None:
    if argument[:1] > b"\x05":
        raise _End
    machine.result.headed = True


def _tuple(count: int) -> Callable[[_Machine, bytes], None]:
    def build(machine: _Machine, _: bytes) -> None:
        items = tuple(machine.pop() for _ in range(count))
        machine.stack.append(items[::-1])

    return build


def _duplicate(machine: _Machine, _: bytes) -> None:
    top = machine.pop()
    machine.stack += [top, top]


def _pop(machine: _Machine, _: bytes) -> None:
    machine.pop()


def _index(argument: bytes) -> int:
    try:
        return int(argument)
    except ValueError:
        raise _End from None


def _little(argument: bytes) -> int:
    return int.from_bytes(argument, "little")


_ACTIONS: dict[str, Callable[[_Machine, bytes], Any]] = {
    **dict.fromkeys(
        ("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE", "SHORT_BINSTRING", "BINSTRING"), _text
    ),
    "STRING": _quoted,
    "GLOBAL": _global,
    "STACK_GLOBAL": _stack_global,
    "INST": _inst,
    "OBJ": _obj,
    "REDUCE": _reduce,
    "NEWOBJ": _reduce,
    "NEWOBJ_EX": _newobj_ex,
    "BUILD": _build,
    "BINPERSID": _persistent,
    "PERSID": _persistent_text,
    **dict.fromkeys(("EXT1", "EXT2", "EXT4"), _extension),
    "PROTO": _proto,
    "FRAME": lambda _machine, _argument: None,
    "MARK": lambda machine, _: machine.stack.append(_MARK),
    "POP": _pop,
    "POP_MARK": lambda machine, _: machine.pop_mark(),
    "DUP": _duplicate,
    "EMPTY_TUPLE": lambda machine, _: machine.stack.append(()),
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.pop_mark())),
    "TUPLE1": _tuple(1),
    "TUPLE2": _tuple(2),
    "TUPLE3": _tuple(3),
    "PUT": lambda machine, argument: machine.remember(_index(argument)),
    "BINPUT": lambda machine, argument: machine.remember(_little(argument)),
    "LONG_BINPUT": lambda machine, argument: machine.remember(_little(argument)),
    "MEMOIZE": lambda machine, _: machine.remember(len(machine.memo)),
    "GET": lambda machine, argument: machine.recall(_index(argument)),
    "BINGET": lambda machine, argument: machine.recall(_little(argument)),
    "LONG_BINGET": lambda machine, argument: machine.recall(_little(argument)),
}
