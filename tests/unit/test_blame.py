"""Blame: named cases, each a sentence that can be false, and what holds of every verdict."""

from __future__ import annotations

import string
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainctl.model.evidence import Evidence, Findings, RankError, RankExit, Role
from trainctl.model.outcome import DOMAIN_OF, STOPS, Confidence, Domain, Outcome
from trainctl.policy.blame import evidence, judge

NODES = ("node-1", "node-2", "node-3", "node-4")


def end(rank: int, **kwargs: Any) -> RankExit:
    """Rank N of a gang with one rank a node."""
    fields: dict[str, Any] = {"node": NODES[rank % 4], "step": 120, "phase": "step", **kwargs}
    return RankExit(rank=rank, **fields)


def raised(rank: int, exception: str, message: str, place: str = "", **kwargs: Any) -> RankExit:
    """A rank that ended by a Python exception, its error file stamped in whole seconds."""
    error = RankError(message, exception=exception, place=place, at_ms=kwargs.pop("said_ms", 5_000))
    return end(rank, **{"code": 1, "at_ms": 5_400, "error": error, **kwargs})


def killed(rank: int, signal: int, **kwargs: Any) -> RankExit:
    """A rank that a signal ended, without a word of its own."""
    return end(rank, **{"signal": signal, "at_ms": 5_400, **kwargs})


def clean(*ranks: int) -> tuple[RankExit, ...]:
    """Ranks that exited with 0."""
    return tuple(end(rank, code=0, at_ms=9_000) for rank in ranks)


def found(*exits: RankExit, **kwargs: Any) -> Findings:
    """The findings of attempt 1 on three nodes, one rank each."""
    fields: dict[str, Any] = {
        "seats": NODES[:3],
        "world": 3,
        "uses_train": True,
        "clean": sum(one.code == 0 for one in exits),
        **kwargs,
    }
    return Findings(attempt=1, exits=tuple(exits), **fields)


def note(text: str, source: str = "cluster", node: str = "", **kwargs: Any) -> Evidence:
    """Something else that was seen."""
    return Evidence(source=source, text=text, node=node, **kwargs)


PEER = (
    "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.2]:4"
)
WATCHDOG = (
    "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE,"
    " NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600060 milliseconds before timing out."
)
NVLINK = (
    "CUDA error: uncorrectable NVLink error detected during the execution\n"
    "CUDA kernel errors might be asynchronously reported at some other API call.\n"
    "For debugging consider passing "
    "CUDA_LAUNCH_BLOCKING=1.\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)
IB = (
    "NET/IB : Got completion from peer 10.0.0.2<54862> with status=12 opcode=0 len=0 "
    "vendor err 129 (Recv)"
)
BIND = (
    "[W socket.cpp:426] [c10d] The server socket has failed to bind to [::]:29500 "
    "(errno: 98 - Address already in use)."
)


@dataclass(frozen=True)
class Case:
    """Findings, and what must be said of them; None: no demand."""

    findings: Findings
    outcome: Outcome
    first: tuple[int, ...] | None = None
    suspects: dict[str, Confidence] = field(default_factory=dict)
    says: tuple[str, ...] = ()
    exception: str | None = None
    place: str | None = None


CASES: dict[str, Case] = {
    # --- stops and ends -----------------------------------------------------------------------
    "a_stop_that_all_ranks_obeyed_is_that_stop": Case(
        found(*clean(0, 1, 2), stop="stop_operator"), Outcome.STOP_OPERATOR, says=("in order",)
    ),
    "a_preemption_that_all_ranks_obeyed_is_a_preemption": Case(
        found(*clean(0, 1, 2), stop="stop_preempted"), Outcome.STOP_PREEMPTED
    ),
    "a_stop_after_the_done_marker_is_finished": Case(
        found(*clean(0, 1, 2), stop="stop_operator", done_step=120), Outcome.FINISHED
    ),
    "a_rank_that_raises_during_a_stop_is_judged_as_that": Case(
        found(*clean(0, 2), raised(1, "ValueError", "boom", "train.py:save"), stop="stop_operator"),
        Outcome.APP_ERROR,
        first=(1,),
    ),
    "ranks_that_we_killed_at_the_end_of_a_stop_blame_nobody": Case(
        found(killed(0, 9, by_us=True), killed(1, 9, by_us=True), stop="stop_operator"),
        Outcome.STOP_OPERATOR,
        says=("by force",),
    ),
    "ranks_ended_by_term_in_a_stop_blame_nobody": Case(
        found(
            killed(0, 15), killed(1, 15), raised(2, "RuntimeError", PEER), stop="stop_time_limit"
        ),
        Outcome.STOP_TIME_LIMIT,
    ),
    "a_kill_at_the_time_limit_is_the_time_limit": Case(
        found(killed(0, 9), killed(1, 9), killed(2, 9), stop="stop_time_limit"),
        Outcome.STOP_TIME_LIMIT,
    ),
    "a_kill_from_outside_while_the_operator_stops_is_no_planned_end": Case(
        found(*clean(0, 2), killed(1, 9), stop="stop_operator"), Outcome.KILLED_UNKNOWN, first=(1,)
    ),
    "nodes_taken_away_by_a_preemption_are_not_lost_nodes": Case(
        found(stop="stop_preempted", nodes_gone=NODES[:3]), Outcome.STOP_PREEMPTED
    ),
    "a_node_that_dies_while_the_operator_stops_is_lost": Case(
        found(*clean(0, 2), stop="stop_operator", nodes_gone=("node-2",)),
        Outcome.NODE_LOST,
        first=(1,),
        suspects={"node-2": Confidence.CERTAIN},
    ),
    "a_stop_that_ends_at_once_says_that_no_rank_had_ended": Case(
        found(stop="stop_operator"), Outcome.STOP_OPERATOR, says=("by force",)
    ),
    "a_word_that_is_no_stop_is_no_stop": Case(
        found(*clean(0, 1, 2), stop="finished"), Outcome.UNKNOWN_END
    ),
    "exit_0_everywhere_with_a_done_marker_is_finished": Case(
        found(*clean(0, 1, 2), done_step=120), Outcome.FINISHED, says=("step 120",)
    ),
    "exit_0_everywhere_without_a_done_marker_is_not_finished": Case(
        found(*clean(0, 1, 2)), Outcome.UNKNOWN_END, says=("done",)
    ),
    "exit_0_everywhere_of_a_trainer_that_has_no_marker_is_finished": Case(
        found(*clean(0, 1, 2), uses_train=False), Outcome.FINISHED
    ),
    "exit_0_of_some_ranks_is_not_finished": Case(
        found(*clean(0, 1), uses_train=False), Outcome.UNKNOWN_END
    ),
    "a_crash_after_the_done_marker_is_finished_with_a_note": Case(
        found(*clean(0, 2), killed(1, 11, step=120), done_step=120),
        Outcome.FINISHED,
        says=("note", "rank 1"),
    ),
    "a_rank_that_failed_long_before_the_done_marker_is_a_failure": Case(
        found(
            *clean(0, 2), raised(1, "ValueError", "boom", "train.py:eval", step=60), done_step=120
        ),
        Outcome.APP_ERROR,
        first=(1,),
    ),
    "nothing_known_is_unknown": Case(found(world=0), Outcome.UNKNOWN_END),
    # --- nodes ---------------------------------------------------------------------------------
    "a_dead_node_explains_what_its_peers_say": Case(
        found(
            raised(0, "RuntimeError", PEER),
            raised(2, "ValueError", "torn read", "data.py:read"),
            nodes_gone=("node-2",),
        ),
        Outcome.NODE_LOST,
        first=(1,),
        suspects={"node-2": Confidence.CERTAIN},
        says=("node-2", "consequences"),
    ),
    "a_dead_node_that_was_not_in_the_attempt_explains_nothing": Case(
        found(raised(0, "ValueError", "boom", "train.py:step"), nodes_gone=("node-4",)),
        Outcome.APP_ERROR,
    ),
    "all_ranks_of_a_dead_node_are_first": Case(
        found(seats=("node-1", "node-2"), ranks_per_node=2, world=4, nodes_gone=("node-2",)),
        Outcome.NODE_LOST,
        first=(2, 3),
        suspects={"node-2": Confidence.CERTAIN},
    ),
    "one_silent_agent_among_others_is_a_likely_bad_node": Case(
        found(raised(0, "RuntimeError", "RendezvousTimeoutError", step=-1), silent=("node-3",)),
        Outcome.NODE_LOST,
        first=(2,),
        suspects={"node-3": Confidence.LIKELY},
    ),
    "all_agents_silent_is_the_launch": Case(found(silent=NODES[:3]), Outcome.LAUNCH_FAILED),
    "a_silent_single_node_is_the_launch": Case(
        found(seats=("node-1",), world=1, silent=("node-1",)), Outcome.LAUNCH_FAILED
    ),
    "too_many_silent_agents_have_one_common_cause": Case(
        found(seats=tuple(f"n{i}" for i in range(10)), world=10, silent=("n1", "n2", "n3")),
        Outcome.LAUNCH_FAILED,
    ),
    "a_silent_agent_does_not_hide_a_rank_that_raised": Case(
        found(raised(0, "ValueError", "boom", "train.py:step"), silent=("node-3",)),
        Outcome.APP_ERROR,
    ),
    "a_cell_that_cannot_be_read_once_ranks_took_steps_accuses_no_node": Case(
        found(raised(0, "RuntimeError", PEER, step=40), silent=("node-3",)), Outcome.UNKNOWN_END
    ),
    "a_note_that_explains_nothing_is_no_failed_launch": Case(
        found(notes=(note("2 stray processes were killed", "sweep", "node-1"),)),
        Outcome.UNKNOWN_END,
    ),
    "a_killed_launcher_took_its_ranks_along": Case(
        found(
            killed(1, 9, by_us=True),
            raised(0, "RuntimeError", PEER),
            notes=(note("the launcher was killed by signal 9", "exit", "node-2", role=Role.LEAD),),
        ),
        Outcome.KILLED_UNKNOWN,
        first=(1,),
    ),
    "a_bind_failure_among_the_notes_of_a_failed_launch_is_a_port_in_use": Case(
        found(launch_error="node-1: RendezvousClosedError", notes=(note(BIND, "log", "node-1"),)),
        Outcome.LAUNCH_FAILED,
        exception="port_in_use",
    ),
    "an_agent_that_vanished_took_its_ranks_along": Case(
        found(
            raised(0, "RuntimeError", PEER),
            notes=(note("the agent on node-2 ended without a word", node="node-2"),),
        ),
        Outcome.KILLED_UNKNOWN,
        first=(1,),
    ),
    # --- launch --------------------------------------------------------------------------------
    "a_launch_error_is_a_failed_launch": Case(
        found(launch_error="node-1: no such file: python3.99"),
        Outcome.LAUNCH_FAILED,
        says=("python3.99",),
    ),
    "a_node_that_died_at_the_launch_is_lost": Case(
        found(launch_error="node-2: gone", nodes_gone=("node-2",)),
        Outcome.NODE_LOST,
        suspects={"node-2": Confidence.CERTAIN},
    ),
    "a_port_in_use_is_a_failed_launch_whatever_is_said_later": Case(
        found(
            raised(0, "DistNetworkError", BIND, step=-1),
            raised(1, "RendezvousClosedError", "", step=-1, said_ms=605_000),
        ),
        Outcome.LAUNCH_FAILED,
        says=("port_in_use",),
        exception="port_in_use",
    ),
    "a_port_in_use_in_the_launchers_log_is_a_failed_launch": Case(
        found(launch_error=f"node-1: the launcher ended with 1: {BIND}"),
        Outcome.LAUNCH_FAILED,
        exception="port_in_use",
    ),
    "a_port_in_use_in_a_note_explains_ranks_that_never_met": Case(
        found(
            raised(1, "RendezvousClosedError", "", step=-1),
            notes=(note(BIND, source="log", node="node-1"),),
        ),
        Outcome.LAUNCH_FAILED,
        exception="port_in_use",
    ),
    "a_port_of_the_programs_own_in_mid_run_is_the_program": Case(
        found(raised(0, "OSError", "[Errno 98] Address already in use", "metrics.py:serve")),
        Outcome.APP_ERROR,
    ),
    "ranks_that_never_met_are_a_failed_launch": Case(
        found(
            raised(
                1,
                "TimeoutError",
                "The client socket has timed out after 1800s while trying to connect to (a, 1).",
                step=-1,
            )
        ),
        Outcome.LAUNCH_FAILED,
    ),
    "no_rank_seen_and_a_reason_given_is_a_failed_launch": Case(
        found(notes=(note("control cells unreadable", "agent", "node-1", role=Role.LEAD),)),
        Outcome.LAUNCH_FAILED,
        says=("control cells",),
    ),
    # --- leads and consequences ----------------------------------------------------------------
    "the_rank_that_raised_leads_although_its_peers_spoke_first": Case(
        found(
            raised(0, "RuntimeError", PEER, said_ms=5_000, at_ms=5_100),
            raised(1, "RuntimeError", "injected", "train.py:step", said_ms=5_000, at_ms=5_900),
            raised(2, "RuntimeError", PEER, said_ms=5_000, at_ms=5_200),
        ),
        Outcome.APP_ERROR,
        first=(1,),
        says=(
            "rank 1 on node-2 raised RuntimeError: injected in train.py:step at step 120",
            "0, 2",
        ),
        exception="RuntimeError",
        place="train.py:step",
    ),
    "a_peer_that_spoke_a_minute_earlier_is_still_no_lead": Case(
        found(
            raised(
                0, "DistBackendError", "NCCL error: ncclRemoteError: A call failed", said_ms=1_000
            ),
            raised(2, "ValueError", "bad shape", "model.py:forward", said_ms=61_000),
        ),
        Outcome.APP_ERROR,
        first=(2,),
    ),
    "a_killed_rank_leads_its_terminated_peers": Case(
        found(killed(0, 15), killed(1, 9), killed(2, 15)), Outcome.KILLED_UNKNOWN, first=(1,)
    ),
    "a_rank_that_raised_leads_one_that_torchrun_killed_later": Case(
        found(
            killed(0, 9, node="node-2", at_ms=35_500),
            raised(1, "KeyError", "'x'", "data.py:get", said_ms=5_000),
        ),
        Outcome.APP_ERROR,
        first=(1,),
    ),
    "the_same_exception_on_all_ranks_has_several_first": Case(
        found(*(raised(rank, "ValueError", "boom", "train.py:step") for rank in (0, 1, 2))),
        Outcome.APP_ERROR,
        first=(0, 1, 2),
        says=("ranks 0-2",),
    ),
    "ranks_that_say_nothing_in_the_same_second_are_all_first": Case(
        found(
            end(0, code=1, at_ms=5_300), end(1, code=1, at_ms=5_100), end(2, code=1, at_ms=5_200)
        ),
        Outcome.APP_ERROR,
        first=(0, 1, 2),
    ),
    "errors_of_the_network_alone_name_nobody": Case(
        found(raised(0, "RuntimeError", IB), raised(1, "RuntimeError", IB), raised(2, "", PEER)),
        Outcome.NETWORK_FAULT,
        first=(),
    ),
    "an_error_of_the_network_beside_an_exception_is_a_consequence": Case(
        found(raised(0, "RuntimeError", IB), raised(1, "ValueError", "boom", "train.py:step")),
        Outcome.APP_ERROR,
        first=(1,),
    ),
    "a_signal_exception_is_never_the_cause": Case(
        found(
            raised(0, "SignalException", "Process 12 got signal: 15", said_ms=1_000),
            raised(1, "ZeroDivisionError", "division by zero", "opt.py:scale", said_ms=9_000),
        ),
        Outcome.APP_ERROR,
        first=(1,),
    ),
    "signal_exceptions_alone_are_an_unknown_end": Case(
        found(*(raised(r, "SignalException", "Process 1 got signal: 15") for r in range(3))),
        Outcome.UNKNOWN_END,
        first=(),
    ),
    "only_consequences_are_an_unknown_end_with_the_earliest_first": Case(
        found(
            raised(0, "RuntimeError", PEER, said_ms=7_000),
            raised(2, "RuntimeError", PEER, said_ms=6_000),
        ),
        Outcome.UNKNOWN_END,
        first=(2,),
    ),
    "a_rank_that_spoke_after_our_kill_is_no_lead": Case(
        found(
            raised(0, "RuntimeError", "interrupted", "train.py:exit", by_us=True, said_ms=4_000),
            raised(1, "ValueError", "boom", "train.py:step", said_ms=5_000),
        ),
        Outcome.APP_ERROR,
        first=(1,),
    ),
    "the_fingerprint_is_the_same_whatever_rank_and_step": Case(
        found(raised(2, "ValueError", "boom at 0x7f12", "train.py:step", step=7)),
        Outcome.APP_ERROR,
        exception="ValueError",
        place="train.py:step",
    ),
    "a_class_name_is_not_said_twice": Case(
        found(raised(1, "Oops", "my.pkg.Oops: injected", "train.py:step")),
        Outcome.APP_ERROR,
        says=("raised Oops: injected in",),
        exception="Oops",
    ),
    "a_class_name_in_the_message_is_read": Case(
        found(raised(1, "", "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to", "m.py:f")),
        Outcome.GPU_OOM,
        exception="OutOfMemoryError",
    ),
    # --- kinds ---------------------------------------------------------------------------------
    "cuda_out_of_memory_is_the_program": Case(
        found(raised(1, "OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB")),
        Outcome.GPU_OOM,
        first=(1,),
    ),
    "a_value_error_that_quotes_cuda_is_the_program": Case(
        found(raised(1, "ValueError", "cannot parse 'CUDA out of memory'", "log.py:parse")),
        Outcome.APP_ERROR,
    ),
    "a_memory_error_is_the_host": Case(found(raised(1, "MemoryError", "")), Outcome.HOST_OOM),
    "a_kill_with_a_kernel_record_is_the_host": Case(
        found(
            killed(1, 9),
            notes=(note("Out of memory: Killed process 42 (python)", "kernel", "node-2"),),
        ),
        Outcome.HOST_OOM,
        first=(1,),
    ),
    "a_kill_with_the_record_of_another_node_is_unknown": Case(
        found(
            killed(1, 9),
            notes=(note("Out of memory: Killed process 42 (python)", "kernel", "node-3"),),
        ),
        Outcome.KILLED_UNKNOWN,
    ),
    "a_kill_without_a_record_is_unknown": Case(
        found(killed(1, 9)),
        Outcome.KILLED_UNKNOWN,
        first=(1,),
        exception="signal 9",
        place="step",
    ),
    "a_kill_reported_as_137_is_a_kill": Case(found(end(1, code=137)), Outcome.KILLED_UNKNOWN),
    "an_oom_record_beside_an_exception_does_not_excuse_it": Case(
        found(
            raised(1, "ValueError", "boom", "train.py:step"),
            notes=(note("oom_kill event", "cluster", "node-2"),),
        ),
        Outcome.APP_ERROR,
    ),
    "a_loader_worker_killed_without_a_record_is_unknown": Case(
        found(raised(1, "RuntimeError", "DataLoader worker (pid 7) is killed by signal: Killed. ")),
        Outcome.KILLED_UNKNOWN,
    ),
    "a_loader_worker_killed_with_a_record_is_the_host": Case(
        found(
            raised(1, "RuntimeError", "DataLoader worker (pid 7) is killed by signal: Killed. "),
            notes=(note("slurmstepd: error: Detected 1 oom_kill event", "cluster", "node-2"),),
        ),
        Outcome.HOST_OOM,
    ),
    "an_uncorrectable_nvlink_error_suspects_the_node": Case(
        found(raised(0, "RuntimeError", PEER), raised(1, "RuntimeError", NVLINK, code=-6)),
        Outcome.GPU_FAULT,
        first=(1,),
        suspects={"node-2": Confidence.LIKELY},
    ),
    "an_uncorrectable_ecc_error_suspects_the_node": Case(
        found(raised(1, "RuntimeError", "CUDA error: uncorrectable ECC error encountered")),
        Outcome.GPU_FAULT,
        suspects={"node-2": Confidence.LIKELY},
    ),
    "an_illegal_memory_access_is_the_program": Case(
        found(raised(1, "RuntimeError", "CUDA error: an illegal memory access was encountered")),
        Outcome.APP_ERROR,
    ),
    "an_illegal_memory_access_with_a_hardware_xid_is_the_gpu": Case(
        found(
            raised(1, "RuntimeError", "CUDA error: an illegal memory access was encountered"),
            notes=(note("NVRM: Xid (PCI:0000:9b:00): 95, pid=7", "kernel", "node-2"),),
        ),
        Outcome.GPU_FAULT,
        suspects={"node-2": Confidence.LIKELY},
    ),
    "an_application_xid_does_not_condemn_the_node": Case(
        found(
            raised(1, "RuntimeError", "CUDA error: an illegal memory access was encountered"),
            notes=(note("NVRM: Xid (PCI:0000:9b:00): 31, pid=7", "kernel", "node-2"),),
        ),
        Outcome.APP_ERROR,
    ),
    "an_xid_quoted_in_a_training_log_is_no_evidence": Case(
        found(
            raised(1, "RuntimeError", "CUDA error: an illegal memory access was encountered"),
            notes=(note("NVRM: Xid (PCI:0000:9b:00): 79, pid=7", "log", "node-2"),),
        ),
        Outcome.APP_ERROR,
    ),
    "a_device_side_assert_is_the_program": Case(
        found(raised(1, "RuntimeError", "CUDA error: device-side assert triggered")),
        Outcome.APP_ERROR,
    ),
    "a_full_disk_under_all_ranks_names_nobody": Case(
        found(*(raised(r, "OSError", "[Errno 28] No space left on device") for r in range(3))),
        Outcome.STORAGE_FAULT,
        first=(0, 1, 2),
    ),
    "a_stale_handle_under_all_ranks_names_nobody": Case(
        found(*(raised(r, "OSError", "[Errno 116] Stale file handle: 'd'") for r in range(3))),
        Outcome.STORAGE_FAULT,
    ),
    "a_full_shared_memory_is_the_program": Case(
        found(
            raised(
                1,
                "RuntimeError",
                "unable to write to file </torch_12_3>: No space left on device (28)",
            )
        ),
        Outcome.APP_ERROR,
    ),
    "a_torn_sample_in_the_loader_is_the_data": Case(
        found(
            raised(
                1,
                "UnicodeDecodeError",
                "Caught UnicodeDecodeError in DataLoader worker process 0.\nOriginal Traceback",
            )
        ),
        Outcome.DATA_ERROR,
    ),
    "a_decoding_error_elsewhere_is_the_program": Case(
        found(raised(1, "UnicodeDecodeError", "invalid start byte", "config.py:read")),
        Outcome.APP_ERROR,
    ),
    "a_segmentation_fault_is_the_program": Case(
        found(killed(0, 11), killed(1, 11)), Outcome.APP_ERROR, first=(0, 1), exception="signal 11"
    ),
    "an_abort_after_a_peers_exception_is_a_consequence": Case(
        found(killed(0, 6, at_ms=4_000), raised(1, "ValueError", "boom", "train.py:step")),
        Outcome.APP_ERROR,
        first=(1,),
    ),
    "an_exit_code_without_a_word_is_the_program": Case(
        found(raised(0, "RuntimeError", PEER), end(1, code=3, at_ms=5_000)),
        Outcome.APP_ERROR,
        first=(1,),
        exception="exit code 3",
    ),
    # --- hangs, misrouted signals, the cluster's own lines --------------------------------------
    "the_rank_that_reports_no_time_out_is_the_one_awaited": Case(
        found(
            *(
                raised(rank, "DistBackendError", WATCHDOG, node=NODES[0])
                for rank in (0, 1, 2, 4, 5)
            ),
            seats=("node-1", "node-2"),
            ranks_per_node=3,
            world=6,
        ),
        Outcome.HANG,
        first=(3,),
        suspects={"node-2": Confidence.GUESS},
    ),
    "a_time_out_on_all_ranks_names_nobody": Case(
        found(*(raised(rank, "DistBackendError", WATCHDOG) for rank in range(3))), Outcome.HANG
    ),
    "a_time_out_during_a_save_is_too_short_a_time_out": Case(
        found(
            raised(0, "DistBackendError", WATCHDOG, phase="save"),
            raised(1, "DistBackendError", WATCHDOG),
        ),
        Outcome.TIMEOUT_TOO_SHORT,
    ),
    "a_time_out_beside_an_exception_is_a_consequence": Case(
        found(
            raised(0, "RuntimeError", "Timed out waiting 10000ms for recv operation to complete"),
            raised(1, "ValueError", "boom", "train.py:step"),
        ),
        Outcome.APP_ERROR,
        first=(1,),
    ),
    "usr1_at_torchrun_is_a_misrouted_stop": Case(
        found(notes=(note("launcher: exitcode : -10 (pid: 7)", "launcher", "node-1"),)),
        Outcome.KILLED_UNKNOWN,
        says=("stop_signal_misrouted", "B:"),
        exception="stop_signal_misrouted",
    ),
    "usr1_at_a_rank_is_a_misrouted_stop": Case(
        found(killed(1, 10), killed(0, 15)),
        Outcome.KILLED_UNKNOWN,
        says=("stop_signal_misrouted", "USR1"),
    ),
    "rc_138_is_a_misrouted_stop": Case(
        found(end(1, code=138)), Outcome.KILLED_UNKNOWN, says=("stop_signal_misrouted",)
    ),
    "a_line_of_slurm_about_preemption_is_a_preemption": Case(
        found(
            killed(0, 15),
            killed(1, 15),
            notes=(note("slurmstepd: *** STEP 7.0 ON r1 CANCELLED AT 2026 DUE TO PREEMPTION ***"),),
        ),
        Outcome.STOP_PREEMPTED,
    ),
    "a_bare_cancelled_is_unknown_and_blames_nobody": Case(
        found(killed(0, 15), killed(1, 15), notes=(note("STEP 7.0 ON r1 CANCELLED AT 2026"),)),
        Outcome.UNKNOWN_END,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    case = CASES[name]
    verdict = judge(case.findings)
    said = "\n".join(verdict.sentences)
    assert verdict.outcome is case.outcome, said
    assert verdict.domain is DOMAIN_OF[case.outcome]
    assert {one.node: one.confidence for one in verdict.suspects} == case.suspects, said
    if case.first is not None:
        assert tuple(seat.rank for seat in verdict.first) == case.first, said
    for words in case.says:
        assert words in said
    if case.exception is not None:
        assert verdict.fingerprint is not None
        assert verdict.fingerprint.exception == case.exception
    if case.place is not None:
        assert verdict.fingerprint is not None
        assert verdict.fingerprint.place == case.place


def test_the_lead_is_the_first_sentence() -> None:
    verdict = judge(CASES["the_rank_that_raised_leads_although_its_peers_spoke_first"].findings)
    assert verdict.sentences[0].startswith("rank 1 on node-2 raised")
    assert verdict.sentences[1] == "ranks 0, 2 then lost their peers: consequences"


def test_evidence_puts_leads_before_consequences_and_notes_last() -> None:
    findings = found(
        raised(0, "RuntimeError", PEER),
        raised(1, "ValueError", "boom", "train.py:step"),
        notes=(note("disk full"),),
    )
    roles = [(one.role, one.rank) for one in evidence(findings)]
    assert roles == [(Role.LEAD, 1), (Role.CONSEQUENCE, 0), (Role.CONTEXT, None)]


def test_a_fingerprint_is_the_same_on_another_rank_node_and_step() -> None:
    one = judge(found(raised(1, "ValueError", "bad value 17 at 0x7f", "train.py:step", step=10)))
    other = judge(found(raised(2, "ValueError", "bad value 99 at 0x8a", "train.py:step", step=50)))
    assert one.fingerprint == other.fingerprint


# --- what holds of every verdict ----------------------------------------------------------------

_WORDS = st.sampled_from(
    [
        PEER, WATCHDOG, NVLINK, BIND, "", "boom", "CUDA out of memory", "No space left on device",
        "Process 1 got signal: 15", "RuntimeError: x", "Cannot allocate memory", "Broken pipe",
    ]
) | st.text(string.printable, max_size=40)  # fmt: skip
_CLASSES = st.sampled_from(
    [
        "", "RuntimeError", "ValueError", "OSError", "MemoryError", "DistBackendError", "DataError",
        "torch.OutOfMemoryError", "SignalException", "UnicodeDecodeError",
    ]
)  # fmt: skip
_ERRORS = st.builds(
    RankError,
    message=_WORDS,
    exception=_CLASSES,
    place=st.sampled_from(["", "train.py:step", "dataset.py:__getitem__"]),
    at_ms=st.sampled_from([0, 1_000, 2_000]),
)
_EXITS = st.builds(
    RankExit,
    rank=st.integers(-1, 5),
    node=st.sampled_from(["", *NODES]),
    code=st.none() | st.sampled_from([0, 0, 1, 3, -9, -6, 137, 138, 255, 1000]),
    signal=st.none() | st.sampled_from([6, 9, 10, 11, 12, 15, 64]),
    at_ms=st.integers(0, 5_000),
    by_us=st.booleans(),
    step=st.integers(-1, 20),
    phase=st.sampled_from(["", "step", "save", "init"]),
    error=st.none() | _ERRORS,
)
_NOTES = st.builds(
    Evidence,
    source=st.sampled_from(["cluster", "log", "kernel", "agent"]),
    text=_WORDS
    | st.sampled_from(
        [
            "oom-kill", "rc 138", "NVRM: Xid (PCI:0000:9b:00): 79,", "x ended without a word",
            "STEP 1 CANCELLED AT x DUE TO NODE FAILURE",
        ]
    ),
    role=st.sampled_from(Role),
    node=st.sampled_from(["", *NODES]),
    rank=st.none() | st.integers(0, 5),
)  # fmt: skip
_FINDINGS = st.builds(
    Findings,
    attempt=st.just(1),
    seats=st.lists(st.sampled_from(NODES), unique=True).map(tuple),
    ranks_per_node=st.integers(0, 2),
    stop=st.sampled_from(["", "nonsense", "finished", *sorted(STOPS)]),
    done_step=st.none() | st.integers(0, 20),
    uses_train=st.booleans(),
    exits=st.lists(_EXITS, max_size=6).map(tuple),
    world=st.integers(0, 8),
    clean=st.integers(0, 8),
    nodes_gone=st.lists(st.sampled_from(NODES), max_size=2).map(tuple),
    silent=st.lists(st.sampled_from(NODES), max_size=3).map(tuple),
    launch_error=st.sampled_from(["", "no such file", BIND]),
    notes=st.lists(_NOTES, max_size=3).map(tuple),
)


@settings(max_examples=400, deadline=None)
@given(_FINDINGS)
def test_no_verdict_accuses_whom_it_must_not(findings: Findings) -> None:
    verdict = judge(findings)
    if verdict.domain in (Domain.SOFTWARE, Domain.DATA, Domain.PLANNED, Domain.PLATFORM):
        assert verdict.suspects == ()
    assert verdict.sentences
    assert all(words == words.strip() and "\n" not in words for words in verdict.sentences)
    assert {one.node for one in verdict.suspects} <= {*findings.seats, *_nodes(findings)}
    assert (verdict.fingerprint is None) == (verdict.domain is Domain.PLANNED)
    assert verdict.domain is not Domain.PLANNED or verdict.first == ()


@settings(max_examples=400, deadline=None)
@given(_FINDINGS, st.randoms(use_true_random=False))
def test_a_verdict_does_not_depend_on_the_order_in_which_exits_were_read(
    findings: Findings, chance: Any
) -> None:
    ends = list({one.rank: one for one in findings.exits}.values())
    shuffled = chance.sample(ends, len(ends))
    one = judge(msgspec.structs.replace(findings, exits=tuple(ends)))
    other = judge(msgspec.structs.replace(findings, exits=tuple(shuffled)))
    assert one == other


@settings(max_examples=400, deadline=None)
@given(_FINDINGS)
def test_a_crash_is_never_reported_as_success(findings: Findings) -> None:
    verdict = judge(findings)
    if verdict.outcome is Outcome.FINISHED and findings.done_step is None:
        assert not any(one.code not in (0, None) or one.signal for one in findings.exits)


def _nodes(findings: Findings) -> set[str]:
    return {one.node for one in findings.exits}
