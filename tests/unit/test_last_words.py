"""What a failed rank said: error files as torchelastic writes them, and the ends of logs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainctl.node.last_words import MESSAGE_LIMIT, from_error_file, from_log, last_words

STACK = """Traceback (most recent call last):
  File "/usr/lib/python3.11/site-packages/torch/distributed/elastic/errors.py", line 355, in wrap
    return f(*args, **kwargs)
  File "/home/u/train.py", line 40, in main
    run(model)
  File "/home/u/model.py", line 9, in forward
    return self.linear(x)
  File "/usr/lib/python3.11/site-packages/torch/nn/functional.py", line 1, in linear
    return torch._C._nn.linear(x)
RuntimeError: CUDA error: uncorrectable NVLink error
CUDA kernel errors might be asynchronously reported
"""


def error_file(folder: Path, content: object) -> Path:
    path = folder / "error.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def log(folder: Path, text: str | bytes) -> Path:
    path = folder / "rank-0.err"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_the_nested_message_is_read_with_its_place_and_time(tmp_path: Path) -> None:
    inner = "RuntimeError: [pair.cc:534] Connection closed by peer"
    extra = {"py_callstack": STACK, "timestamp": "1730223202"}
    error = from_error_file(
        error_file(tmp_path, {"message": {"message": inner, "extraInfo": extra}})
    )
    assert error is not None
    assert (error.message, error.exception) == (inner, "RuntimeError")
    assert (error.place, error.at_ms) == ("model.py:forward", 1730223202000)


@pytest.mark.parametrize(
    ("content", "message", "exception"),
    [
        ({"message": "plain words"}, "plain words", ""),
        ({"message": "torch.cuda.OutOfMemoryError: no more"}, None, "OutOfMemoryError"),
        (
            {"message": {"message": {"message": "ValueError: deep"}}},
            "ValueError: deep",
            "ValueError",
        ),
        ({"message": {"message": "E: x", "extraInfo": {"timestamp": 5}}}, "E: x", "E"),
        ({"message": {"message": "x", "extraInfo": {"timestamp": "soon"}}}, "x", ""),
        ({"message": {"message": "x", "extraInfo": None}, "exitcode": -6}, "x", ""),
    ],
)
def test_every_shape_of_an_error_file_is_read(
    tmp_path: Path, content: object, message: str | None, exception: str
) -> None:
    error = from_error_file(error_file(tmp_path, content))
    assert error is not None
    assert message is None or error.message == message
    assert error.exception == exception


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", "null", "3", '{"message": {}}', "[" * 9999])
def test_a_broken_error_file_gives_no_words_and_the_log_is_asked(
    tmp_path: Path, content: str
) -> None:
    broken = error_file(tmp_path, content)
    assert from_error_file(broken) is None
    error = last_words(broken, log(tmp_path, STACK), 1, None)
    assert error is not None
    assert error.exception == "RuntimeError"


def test_a_message_is_cut(tmp_path: Path) -> None:
    error = from_error_file(error_file(tmp_path, {"message": "x" * 100_000}))
    assert error is not None
    assert len(error.message) == MESSAGE_LIMIT


def test_the_innermost_frame_of_the_user_is_the_place(tmp_path: Path) -> None:
    error = from_log(log(tmp_path, STACK))
    assert error is not None
    assert error.place == "model.py:forward"
    assert error.message.startswith("RuntimeError: CUDA error: uncorrectable NVLink error\nCUDA")


def test_without_a_frame_of_the_user_the_innermost_is_the_place(tmp_path: Path) -> None:
    text = STACK.replace("/home/u/", "/opt/lib/python3.11/")
    error = from_log(log(tmp_path, text))
    assert error is not None
    assert error.place == "functional.py:linear"


def test_the_last_of_chained_exceptions_counts(tmp_path: Path) -> None:
    second = STACK.replace("RuntimeError: CUDA", "app.errors.WrappedError: CUDA")
    between = "During handling of the above exception, another exception occurred:"
    chained = f"{STACK}\n{between}\n\n{second}"
    error = from_log(log(tmp_path, chained))
    assert error is not None
    assert error.exception == "WrappedError"


def test_torchs_rank_prefix_is_no_part_of_a_traceback(tmp_path: Path) -> None:
    prefixed = "".join(f"[rank3]: {line}\n" for line in STACK.splitlines())
    noise = "[rank3]:[W1129 11:56:57.6 ProcessGroupNCCL.cpp:1] Warning: destroy was not called\n"
    error = from_log(log(tmp_path, prefixed + noise))
    assert error is not None
    assert (error.exception, error.place) == ("RuntimeError", "model.py:forward")
    assert "Warning" not in error.message


def test_a_bare_exception_and_a_syntax_error_have_places(tmp_path: Path) -> None:
    head = "Traceback (most recent call last):\n"
    text = f'{head}  File "/a/b.py", line 1, in f\n    g()\nKeyboardInterrupt\n'
    error = from_log(log(tmp_path, text))
    assert error is not None
    assert (error.exception, error.place) == ("KeyboardInterrupt", "b.py:f")
    text = (
        'Traceback (most recent call last):\n  File "/a/b.py", line 1, in <module>\n    import c\n'
        '  File "/a/c.py", line 7\n    def (\n        ^\nSyntaxError: invalid syntax\n'
    )
    error = from_log(log(tmp_path, text))
    assert error is not None
    assert (error.exception, error.place) == ("SyntaxError", "c.py:<module>")


def test_a_traceback_cut_in_the_middle_is_not_taken_for_whole(tmp_path: Path) -> None:
    cut = STACK.partition("RuntimeError")[0]
    assert from_log(log(tmp_path, cut)) is None
    error = from_log(log(tmp_path, STACK.replace("Runtime", "First") + cut))
    assert error is not None
    assert error.exception == "FirstError"


def test_only_the_tail_of_a_huge_log_is_read(tmp_path: Path) -> None:
    error = from_log(log(tmp_path, "é" * 3_000_000 + "\n" + STACK))
    assert error is not None
    assert error.exception == "RuntimeError"
    assert from_log(log(tmp_path, STACK + "all is well\n" * 30_000)) is None


def test_binary_rubbish_is_survived(tmp_path: Path) -> None:
    error = from_log(log(tmp_path, b"\x00\xff\xfe" * 1000 + b"\n" + STACK.encode()))
    assert error is not None
    assert error.exception == "RuntimeError"


def test_a_watchdogs_lines_are_words_and_native_frames_are_not(tmp_path: Path) -> None:
    text = (
        "[rank2]:[E626 05:06:30.9 ProcessGroupNCCL.cpp:632] [Rank 2] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=1)\n"
        "Exception raised from check at ../ProcessGroupNCCL.cpp:632 (most recent call first):\n"
        + "".join(f"frame #{n}: std::error::f + 0x0 (0x7f in /lib/x.so)\n" for n in range(40))
    )
    error = last_words(None, log(tmp_path, text), None, 6)
    assert error is not None
    assert "Watchdog caught collective" in error.message
    assert "frame #" not in error.message


@pytest.mark.parametrize("signum", [9, 15, 2, 1, 10, 12])
def test_what_was_killed_from_outside_said_nothing_about_it(tmp_path: Path, signum: int) -> None:
    assert last_words(None, log(tmp_path, STACK), None, signum) is None


def test_a_survived_traceback_is_not_the_reason_of_a_crash(tmp_path: Path) -> None:
    survived = STACK + "step\n" * 100
    assert last_words(None, log(tmp_path, survived), None, 11) is None
    error = last_words(None, log(tmp_path, STACK), None, 6)
    assert error is not None
    assert error.exception == "RuntimeError"


def test_harmless_output_is_no_error(tmp_path: Path) -> None:
    assert last_words(None, log(tmp_path, "step 1\nstep 2\n"), 3, None) is None
    assert last_words(None, tmp_path / "missing", 3, None) is None
