"""Faults of the bundled Triton that end the server, corrected in its files when it is installed.

Any client can trigger all but the last. PyPI's newest nvidia-pytriton contains Triton 2.51. If a gRPC client gives up
(a deadline passes, a connection breaks) while its response is being made, Triton puts the request on the completion
queue twice: the server reads freed memory and dies. Sixteen clients with deadlines near the latency kill it within
seconds. If the client gives up just after the response was sent, the request is never freed. NVIDIA fixed the handling
of cancellation in 2.54 to 2.59 (triton-inference-server/server, pull requests 7840, 8078 and 8220). These versions are
not on PyPI, and the code is linked into the executable, so no library can be replaced. Instead, machine code is changed
in place, and only in the exact executable that it was found in.

JSON over HTTP is read by a function that calls itself for each level, without a limit, and the memory of an input's
values is reserved for as many as its shape says. So 400 KB of brackets, or a few bytes of shape, end the server. Both
places now ask a function of the library that `backends/requests` becomes, which is preloaded. A compressed request that
is refused was never freed: 100 KB of it could cost 100 MB for good.

A model whose warm-up fails triggers the last one, in Triton's library. The loading thread is told of the failure by
the instance's own thread, and destroys the instance. It asks that thread to end in the name of the last instance in the
thread's list, but the thread puts its instance back there only after it has told: the loading thread reads beyond an
empty list. Now it waits until the list is not empty, and the load fails with the warm-up's error: no backend hides it.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from shiplift.runtime.base.errors import MissingTool


@dataclass(frozen=True, kw_only=True)
class Patch:
    """Machine code at `offset` bytes of a file, and what stands there instead; both have the same length."""

    offset: int
    old: bytes
    new: bytes


@dataclass(frozen=True, kw_only=True)
class Patched:
    """An executable's SHA-256 before and after its patches."""

    before: str
    after: str
    patches: tuple[Patch, ...]


# Where the executable asks the library of `backends/requests`, if that has put the address of a function into the slot:
# in what is left over of the last pages of code and of data, which is zero.
QUESTIONS, SLOTS = 0xAA8C40, 0xDC5F00
MARK = b"shiplift"  # the first of QUESTIONS' bytes, by which the library knows the patched executable
_PARSE, _READ_DATA, _MEMBER_AS_ARRAY = 0x1D0390, 0x2F053D, 0x1CB430
_ERROR_DELETE, _EVBUFFER_FREE = 0xB41E0, 0x9A6580


def _to(target: int, after: int) -> bytes:
    """The distance of a target from the instruction that ends at `after`."""
    return (target - after).to_bytes(4, "little", signed=True)


def _question(at: int, slot: int, *, replaced: bytes, onward: int) -> bytes:
    """Code that calls the slot's function with the same three arguments; an error that it returns is the caller's.

    rax = slot; if rax = 0 go on; push rdi, rsi, rdx; call rax; pop them; if rax = 0 go on; return;
    go on: the replaced bytes; jump onward
    """
    code = bytes.fromhex("488b05") + _to(slot, at + 7)
    code += bytes.fromhex("4885c0 740e 575652 ffd0 5a5e5f 4885c0 7401 c3") + replaced + b"\xe9"
    return code + _to(onward, at + len(code) + 4)


def _end(at: int) -> bytes:
    """Code that deletes an error as its caller did, and then the decompressed body, if there is one.

    sub rsp, 8; call ErrorDelete; add rsp, 8; rdi = decompressed_buffer; if rdi = 0 return; jump evbuffer_free
    """
    code = bytes.fromhex("4883ec08 e8") + _to(_ERROR_DELETE, at + 9)
    code += bytes.fromhex("4883c408 488bbd70fdffff 4885ff 7501 c3 e9")
    return code + _to(_EVBUFFER_FREE, at + len(code) + 4)


_ABOUT_JSON = QUESTIONS + len(MARK)
_JSON_CODE = _question(_ABOUT_JSON, SLOTS, replaced=bytes.fromhex("4154"), onward=_PARSE + 6)
_ABOUT_DATA = _ABOUT_JSON + len(_JSON_CODE)
_DATA_CODE = _question(_ABOUT_DATA, SLOTS + 8, replaced=b"", onward=_MEMBER_AS_ARRAY)
_END = _ABOUT_DATA + len(_DATA_CODE)
_CODE = MARK + _JSON_CODE + _DATA_CODE + _end(_END)


def _call(at: int, old: int, new: int) -> Patch:
    """Another function for a call: call old  ->  call new."""
    return Patch(offset=at, old=b"\xe8" + _to(old, at + 5), new=b"\xe8" + _to(new, at + 5))


TRITONSERVER = Patched(
    before="01f1d4a777fea48f8e62a3df0403bcbd858c7a0be203e032a795032555f3e3f4",
    after="ce95849ebaafc79c47cacd86270f58f3c27ed8ad535f1ed0571abb683f98b358",
    patches=(
        # ModelInferHandler::InferResponseComplete: it now ends a request as cancelled only if the cancellation was
        # issued. A received notification no longer suffices: then the notification's handler deals with the request.
        #   cmpb $0, received_notification_; je respond  ->  cmpl $CANCELLATION_ISSUED, step_; nop; jne respond
        Patch(
            offset=0x1F3467,
            old=bytes.fromhex("4180bd6001000000 0f84bb020000"),
            new=bytes.fromhex("41837c2420086690 0f85bb020000"),
        ),
        # InferHandlerState::Context::HandleCancellation of unary requests: one whose response is written (FINISH, 2) is
        # released like one that is cancelled (8, 9), since no other event will come for it.
        #   edx = step - 8; if edx <= 1 release  ->  edx = 3 * step; if edx & 0x14 release; of 0, 1, 2, 3, 8, 9: 2, 8, 9
        Patch(
            offset=0x1F4DF3,
            old=bytes.fromhex("8d50f8 83fa01 0f8657010000"),
            new=bytes.fromhex("6bd003 f6c214 0f8557010000"),
        ),
        # triton::common::TritonJson::Value::Parse(text, length) asks first.
        #   endbr64; push r12  ->  jmp question; nop
        Patch(
            offset=_PARSE,
            old=bytes.fromhex("f30f1efa 4154"),
            new=b"\xe9" + _to(_ABOUT_JSON, _PARSE + 5) + b"\x90",
        ),
        # HTTPAPIServer::ParseJsonTritonIO asks before it takes an input's values from "data".
        _call(_READ_DATA, _MEMBER_AS_ARRAY, _ABOUT_DATA),
        # HTTPAPIServer::HandleInfer, after a body that was decompressed can't be read or becomes no request.
        _call(0x2F98FB, _ERROR_DELETE, _END),
        _call(0x2F9BB5, _ERROR_DELETE, _END),
        _call(0x2F9D0D, _ERROR_DELETE, _END),
        Patch(offset=QUESTIONS, old=bytes(len(_CODE)), new=_CODE),
    ),
)

LIBRARY = Patched(
    before="ea04aab43d3ee859e73a4414d387c2b6317ef9d20ef32683211a84e9b54a19f9",
    after="b869645adcdf9d63e8ee2722449c38c8edc9fc826bf7957d6d08a9f527b7cff7",
    patches=(
        # TritonBackendThread::StopBackendThread: `model_instances_.back()` waits until that deque holds something.
        #   add 1, atomically if threaded; rax = finish  ->  add 1 atomically; do rax = finish while rax == start
        Patch(
            offset=0x1A6497,
            old=bytes.fromhex("7414 488b0558412c01 803800 0f8407010000 83450801 488b4360"),
            new=bytes.fromhex("7405 f083450801 f390 488b4360 483b4340 74f4 0f1f8000000000"),
        ),
    ),
)


def apply(patched: Patched, executable: Path) -> None:
    """Replaces the executable with the patched one, atomically; one that is already patched stays as it is.

    Raises:
        MissingTool: it is neither the executable that the patches were made for nor the result.
    """
    content = executable.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if digest == patched.after:
        return
    if digest != patched.before:
        raise MissingTool(
            f"{executable.name} has the SHA-256 {digest[:12]}, but Shiplift's patches are for {patched.before[:12]}: "
            "without them, clients that give up or a failed warm-up could crash the server",
            do="Install the version of nvidia-pytriton that Shiplift names, from PyPI or a mirror of it.",
        )
    whole = _with(content, patched.patches)
    if hashlib.sha256(whole).hexdigest() != patched.after:
        raise MissingTool(
            f"{executable.name} does not have the expected SHA-256 after patching",
            do="Report this: it is a bug in Shiplift.",
        )
    new = executable.with_name(f".{executable.name}.new")  # the old file may be linked from elsewhere
    new.write_bytes(whole)
    new.chmod(executable.stat().st_mode & 0o777)
    new.replace(executable)


def _with(content: bytes, patches: tuple[Patch, ...]) -> bytes:
    changed = bytearray(content)
    for patch in patches:
        changed[patch.offset : patch.offset + len(patch.old)] = patch.new
    return bytes(changed)
