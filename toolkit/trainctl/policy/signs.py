"""
What one rank's end is a sign of, read from its exit code, its signal and its own last words.

A sign is no verdict: `policy.blame` weighs the signs of all ranks together. The tables below are
tried in order and the first match counts. Words are only trusted where a program would really print
them: a `ValueError` that quotes "CUDA out of memory" is the program's own error, whatever it says.
"""

from __future__ import annotations

import re
from enum import StrEnum

from trainctl.model.evidence import Evidence, RankError, RankExit


class Sign(StrEnum):
    """What the end of one rank looks like, taken alone."""

    #: It exited with 0.
    CLEAN = "clean"
    #: Nobody saw it end; that says nothing about it.
    UNSEEN = "unseen"
    #: We, or somebody outside, told it to end.
    STOPPED = "stopped"
    #: It lost somebody else: never the cause while anything else is known.
    PEER_LOST = "peer_lost"
    #: It waited for somebody else until a limit: usually a victim.
    TIMED_OUT = "timed_out"
    #: The ranks did not find each other.
    RENDEZVOUS = "rendezvous"
    #: It failed inside collective code and its words do not say whose fault that is.
    COLLECTIVE = "collective"
    #: SIGABRT without words: a watchdog aborts a waiting rank so, and a failed assertion too.
    ABORTED = "aborted"
    GPU_FAULT = "gpu_fault"
    GPU_OOM = "gpu_oom"
    HOST_OOM = "host_oom"
    STORAGE = "storage"
    PORT_IN_USE = "port_in_use"
    DATA = "data"
    #: A Python exception of the program.
    RAISED = "raised"
    #: A crash in native code (SIGSEGV and its kin): the rank's own doing.
    CRASHED = "crashed"
    #: SIGUSR1 or SIGUSR2 met a process that does not handle it: a stop that went astray.
    MISROUTED = "misrouted"
    #: SIGKILL, and nothing says by whom.
    KILLED = "killed"
    #: A code other than 0, without a word.
    EXITED = "exited"


CONSEQUENCES: frozenset[Sign] = frozenset(
    {Sign.STOPPED, Sign.PEER_LOST, Sign.TIMED_OUT, Sign.RENDEZVOUS}
)
"""Ends that follow from something else."""

SOFT: frozenset[Sign] = frozenset({Sign.COLLECTIVE, Sign.ABORTED})
"""Ends that follow from something else where there is something else; else their own cause."""

STRENGTH: dict[Sign, int] = {
    sign: strength
    for strength, signs in enumerate(
        (
            (Sign.GPU_FAULT, Sign.HOST_OOM, Sign.PORT_IN_USE),
            (Sign.STORAGE, Sign.GPU_OOM, Sign.DATA, Sign.RAISED),
            (Sign.CRASHED, Sign.MISROUTED),
            (Sign.KILLED,),
            (Sign.EXITED,),
            (Sign.COLLECTIVE, Sign.ABORTED),
        )
    )
    for sign in signs
}
"""Which of two ends of the same second explains more: lower is stronger."""

SIGNAL_NAMES: dict[int, str] = {
    1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS",
    8: "SIGFPE", 9: "SIGKILL", 10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE",
    14: "SIGALRM", 15: "SIGTERM", 24: "SIGXCPU", 25: "SIGXFSZ", 31: "SIGSYS",
}  # fmt: skip
"""Linux numbers on x86-64 and arm64; policy may not ask the machine it happens to run on."""

_BY_SIGNAL: dict[int, Sign] = {
    **dict.fromkeys((1, 2, 3, 15), Sign.STOPPED),
    **dict.fromkeys((4, 5, 7, 8, 11, 31), Sign.CRASHED),
    **dict.fromkeys((10, 12), Sign.MISROUTED),
    6: Sign.ABORTED,
    9: Sign.KILLED,
    13: Sign.PEER_LOST,
}

PROGRAM_ERRORS: frozenset[str] = frozenset({
    "ArithmeticError", "AssertionError", "AttributeError", "FileExistsError",
    "FileNotFoundError", "ImportError", "IndentationError", "IndexError", "IsADirectoryError",
    "KeyError", "LookupError", "ModuleNotFoundError", "NameError", "NotADirectoryError",
    "NotImplementedError", "OverflowError", "PermissionError", "RecursionError",
    "StopIteration", "SyntaxError", "TypeError", "UnboundLocalError", "ValueError",
    "ZeroDivisionError",
})  # fmt: skip
"""Classes that are the program's own whatever their text quotes."""

_ADVICE = re.compile(
    r"^.*(might be asynchronously reported|consider passing CUDA_LAUNCH_BLOCKING"
    r"|Compile with `?TORCH_USE_CUDA_DSA|To enable traceback see|HIP_LAUNCH_BLOCKING).*$",
    re.MULTILINE,
)
"""Text that libraries add to any error: no evidence of anything."""

_WORDS: tuple[tuple[Sign, re.Pattern[str]], ...] = tuple(
    (sign, re.compile(pattern, re.IGNORECASE))
    for sign, pattern in (
        (Sign.GPU_FAULT, r"uncorrectable (nvlink|ecc)|cudaError(ECC|Nvlink)Uncorrectable"
                         r"|CUDA_ERROR_(ECC|NVLINK)_UNCORRECTABLE|GPU is lost|fallen off the bus"),
        (Sign.GPU_OOM, r"(CUDA|HIP|XPU|MPS backend)( error:)? out of memory"
                       r"|CUBLAS_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY"),
        (Sign.HOST_OOM, r"DefaultCPUAllocator: (can't|not enough)|std::bad_alloc"
                        r"|\[Errno 12\]|Cannot allocate memory"),
        (Sign.RAISED, r"unable to (write|mmap|open|resize).*</torch_|out of shared memory"
                      r"|shared memory.*limit"),
        (Sign.RAISED, r"nccl ?Invalid ?(Usage|Argument)|NCCL error: invalid (usage|argument)"),
        (Sign.PORT_IN_USE, r"EADDRINUSE|errno:? 98\b|address already in use"),
        (Sign.STORAGE, r"No space left on device|Disk quota exceeded|Stale (NFS )?file handle"
                       r"|Read-only file system|Transport endpoint is not connected"
                       r"|Cannot send after transport endpoint shutdown"
                       r"|\[Errno (5|28|30|107|108|116|122)\]|Input/output error"
                       r"|PytorchStreamWriter failed writing|file write failed"),
        (Sign.TIMED_OUT, r"Watchdog caught collective operation timeout|Timed out waiting \d+ ?ms"
                         r"|Timeout at NCCL work|operations have failed or timed out"
                         r"|watchdog got stuck|Socket timeout|wait timeout after \d+ ?ms"
                         r"|detected by watchdog at work|collective operation timeout"),
        (Sign.RENDEZVOUS, r"Rendezvous(Closed|Connection|Timeout|Graceful|State)\w*"
                          r"|client socket has timed out|connection to the C10d store has failed"
                          r"|connectFullMesh failed|failed to connect to \S*:\d+"),
        (Sign.PEER_LOST, r"Connection (closed|reset) by (remote )?peer"
                         r"|\[Errno (32|103|104|110|111)\]|Broken pipe|Connection (refused|aborted)"
                         r"|recvValue(WithTimeout)?"
                         r"|failed to recv, got 0 bytes|Failed to (check the|recv)|sendBytes failed"
                         r"|nccl ?Remote ?Error|remote process exited|closing signal SIGTERM"
                         r"|Got completion from peer|socket (closed|disconnected)"
                         r"|TCPStore.*(closed|lost)|Application timeout caused pair closure"
                         r"|No route to host|Network is unreachable|\[Errno (101|113)\]|NET/IB"
                         r"|NCCL communicator was aborted"),
        (Sign.STOPPED, r"got signal: (1|2|3|15)\b|^SignalException\b|^KeyboardInterrupt\b"),
        (Sign.COLLECTIVE, r"\b(NCCL|nccl\w+Error|gloo|c10d|ProcessGroup\w*|TCPStore)\b"),
    )
)  # fmt: skip
"""Words to sign; the order matters where one message holds several."""

_BY_CLASS: dict[str, Sign] = {
    "OutOfMemoryError": Sign.GPU_OOM,
    "MemoryError": Sign.HOST_OOM,
    "SignalException": Sign.STOPPED,
    "KeyboardInterrupt": Sign.STOPPED,
    "BrokenPipeError": Sign.PEER_LOST,
    "ConnectionResetError": Sign.PEER_LOST,
    "ConnectionAbortedError": Sign.PEER_LOST,
    "ConnectionRefusedError": Sign.PEER_LOST,
    "DistNetworkError": Sign.PEER_LOST,
    "DistStoreError": Sign.PEER_LOST,
    "DistBackendError": Sign.COLLECTIVE,
}
"""Classes that speak for themselves once their words said nothing."""

_DATA_CLASS = re.compile(r"(^|[a-z])(Data|Dataset|Sample|Record)(Corruption|Format|Decode)?Error$"
                         r"|^(UnidentifiedImageError|DatasetGenerationError)$")  # fmt: skip
_DECODING: frozenset[str] = frozenset({
    "UnicodeDecodeError", "JSONDecodeError", "BadZipFile", "BadGzipFile", "ReadError",
    "ArrowInvalid", "UnpicklingError", "EOFError", "LZMAError",
})  # fmt: skip
"""Decoding errors: of the data when raised where data is read, else the program's own."""
_DATA_PLACE = re.compile(r"data(set|loader)|__getitem__|collate|tokeniz", re.IGNORECASE)

_LOADER = re.compile(r"Caught (\w+) in DataLoader worker process")
_LOADER_KILLED = re.compile(
    r"DataLoader worker.*(killed by signal: (Killed|9)|exited unexpectedly)", re.IGNORECASE
)
_CLASS_PREFIX = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning)): ")
_OOM_RECORD = re.compile(
    r"out of memory: killed process|oom[-_ ]?kill|memory cgroup out of memory|OUT_OF_ME|\b0:125\b",
    re.IGNORECASE,
)
_NETWORK = re.compile(
    r"Got completion from peer.*(status=|error |vendor err)|No route to host|Network is unreachable"
    r"|\[Errno (101|113)\]|ibv_\w+ failed|NET/IB.*(async|port error|link down)",
    re.IGNORECASE,
)
_XID = re.compile(r"NVRM: Xid \([^)]*\): (\d+)")
HARDWARE_XIDS: frozenset[int] = frozenset({48, 64, 74, 79, 95, 119, 120, 140})
"""Xids that the driver raises for the hardware itself; all others may be a program's doing."""


def exception_of(error: RankError) -> str:
    """The bare class name of what was raised, "" where the words hold none."""
    if loader := _LOADER.search(error.message):
        return loader[1]
    if not (name := error.exception) and (found := _CLASS_PREFIX.match(error.message)):
        name = found[1]
    return name.rpartition(".")[2]


def message_of(error: RankError) -> str:
    """The words themselves: one line, without the class name and without advice."""
    words = _ADVICE.sub("", error.message).strip()
    name, colon, rest = words.partition(":")
    if colon and error.exception and name.rpartition(".")[2] == error.exception:
        words = rest.strip()
    words = _CLASS_PREFIX.sub("", words, count=1).strip()
    return words.splitlines()[0].strip() if words else ""


def signal_of(end: RankExit) -> int | None:
    """The signal that ended the rank, also where a shell or torchrun reports it as an exit code."""
    if end.signal is not None:
        return end.signal
    if end.code is None:
        return None
    if end.code < 0:
        return -end.code
    return end.code - 128 if end.error is None and end.code - 128 in SIGNAL_NAMES else None


def sign_of(end: RankExit) -> Sign:
    """What the end of this rank looks like, taken alone."""
    signal = signal_of(end)
    if signal is None and end.code is None:
        return Sign.UNSEEN
    if signal is None and end.code == 0:
        return Sign.CLEAN
    if end.error is not None and (end.error.message or end.error.exception):
        return _sign_of_words(end.error)
    if end.by_us:
        return Sign.STOPPED
    return Sign.EXITED if signal is None else _BY_SIGNAL.get(signal, Sign.KILLED)


def _sign_of_words(error: RankError) -> Sign:
    name = exception_of(error)
    if _is_data_error(name, error):
        return Sign.DATA
    if _LOADER_KILLED.search(error.message):
        return Sign.KILLED
    if name in PROGRAM_ERRORS or _LOADER.search(error.message):
        return Sign.RAISED
    text = f"{name}: {_ADVICE.sub('', error.message)}"
    for sign, pattern in _WORDS:
        if pattern.search(text):
            return sign
    return _BY_CLASS.get(name, Sign.RAISED)


def _is_data_error(name: str, error: RankError) -> bool:
    if _DATA_CLASS.search(name):
        return True
    in_loader = _LOADER.search(error.message) or _DATA_PLACE.search(error.place)
    return name in _DECODING and in_loader is not None


def speaks_of_network(end: RankExit) -> bool:
    """Whether the rank's words are those of a network that failed, and not of a peer that ended."""
    return end.error is not None and _NETWORK.search(end.error.message) is not None


def is_oom_record(note: Evidence, end: RankExit) -> bool:
    """Whether `note` is the kernel's or the cluster's record that this rank's host ran out."""
    told_of_it = note.node in ("", end.node) and note.rank in (None, end.rank)
    return note.source != "log" and told_of_it and _OOM_RECORD.search(note.text) is not None


def hardware_xid(note: Evidence) -> int | None:
    """The Xid of a kernel record that speaks of the hardware; a training log's quote is none."""
    found = _XID.search(note.text) if note.source != "log" else None
    number = int(found[1]) if found else -1
    return number if number in HARDWARE_XIDS else None
