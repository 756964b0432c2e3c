"""
What the journal costs: a durable append beside a bare write and fsync, and events decoded a second.

    python tests/bench/bench_journal.py [FOLDER]     FOLDER: on the storage to measure

Prints one JSON object a line. The two kinds of write alternate within one run, so that the ratio
holds on a noisy machine. Bars: ratio ≤ 2; ≥ 500,000 events/s.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from trainctl.adapters.journal import JournalWriter, read_journal
from trainctl.adapters.journal_lines import decode
from trainctl.base.clock import SystemClock, boot_id
from trainctl.base.rundir import RunDir
from trainctl.model import events as ev
from trainctl.model.events import AnyEvent

ROUNDS = 15
APPENDS = 40
EVENTS = 1_000_000


def main() -> None:
    """Run both and print them."""
    parent = Path(sys.argv[1]) if len(sys.argv) > 1 else Path.cwd()
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        run = RunDir(Path(folder))
        run.events.mkdir()
        print(json.dumps(appends(run)))
        print(json.dumps(decoding(run)))


def appends(run: RunDir) -> dict[str, object]:
    """Median time of one durable append, and of a write + fsync of the same bytes."""
    writer = JournalWriter(run, 1, SystemClock(), boot_id())
    event = ev.Progressed(attempt=3, step=123_456, loss=1.2345)
    line = msgspec.json.encode(writer.append(event)) + b"\n"
    bare = os.open(run.root / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(ROUNDS):
        for _ in range(APPENDS):
            began = time.perf_counter()
            os.write(bare, line)
            os.fsync(bare)
            middle = time.perf_counter()
            writer.append(event)
            theirs.append(middle - began)
            ours.append(time.perf_counter() - middle)
    os.close(bare)
    writer.close()
    run.journal(1).unlink()
    append_us, bare_us = (statistics.median(times) * 1e6 for times in (ours, theirs))
    return {
        "what": "durable append",
        "append_us": round(append_us, 1),
        "write_fsync_us": round(bare_us, 1),
        "ratio": round(append_us / bare_us, 3),
        "bar": 2.0,
    }


def decoding(run: RunDir) -> dict[str, object]:
    """Events a second through the decoder alone, and through `read_journal` with all its checks."""
    mixture: list[AnyEvent] = [
        ev.Progressed(attempt=3, step=123_456, loss=1.2345),
        ev.CheckpointCommitted(attempt=3, step=123_456, path="step-123456.a0003", took_ms=812),
        ev.Loaded(attempt=3, step=123_000, path="step-123000.a0003"),
        ev.FirstStep(attempt=3, step=123_001),
    ]
    boot = boot_id()
    lines = []
    for seq in range(1, EVENTS + 1):
        event: AnyEvent = mixture[seq % len(mixture)] if seq > 1 else ev.SupervisorStarted()
        stamp = {"v": 1, "term": 1, "seq": seq, "boot": boot}
        at_ms = 1_796_087_402_187 + 30 * seq
        event = msgspec.structs.replace(event, **stamp, at_ms=at_ms, mono_ms=30 * seq)
        lines.append(msgspec.json.encode(event) + b"\n")
    text = b"".join(lines)
    run.journal(1).write_bytes(text)
    del lines
    some = text[: text.find(b"\n", len(text) // 10) + 1]
    rates = []
    for _ in range(5):
        began = time.perf_counter()
        count = len(decode(some).lines)
        rates.append(count / (time.perf_counter() - began))
    del text
    began = time.perf_counter()
    journal = read_journal(run)
    took_s = time.perf_counter() - began
    assert len(journal.events) == EVENTS, journal.warnings
    assert not journal.warnings, journal.warnings
    return {
        "what": "decode",
        "events_per_s": round(max(rates)),
        "bar": 500_000,
        "read_journal_events_per_s": round(EVENTS / took_s),
        "read_journal_s": round(took_s, 2),
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


if __name__ == "__main__":
    main()
