"""
Who or what ended an attempt: facts in, verdict out.

    seen facts ──▶ rules, in order; the first that has an answer ──▶ Verdict

The rules go from what is certain (the cluster says a node is dead) to what is weak (only
consequences were seen). One idea carries most of them: a rank that lost its peer, was told to end,
or waited in vain is a *consequence*; the *lead* is the rank whose end is none, and time only breaks
ties, by whole seconds, since error files are no finer and hosts' clocks differ.

A verdict names a suspect only in the domains hardware and unknown, and only `certain` and `likely`
ones can lead to a quarantine. A crash in native code (SIGSEGV, SIGABRT, …) is `app_error`: far more
often the program than the machine, and a bad machine shows itself by failing again after a trade.
"""

from __future__ import annotations

from collections.abc import Callable

from trainctl.model.evidence import Evidence, Findings, Role
from trainctl.model.outcome import Outcome, Verdict
from trainctl.policy import blame_ends, blame_ranks, sentences
from trainctl.policy.seen import Seen, verdict

RULES: tuple[Callable[[Seen], Verdict | None], ...] = (
    blame_ends.done_is_done,
    blame_ends.node_is_gone,
    blame_ends.launch_failed,
    blame_ends.port_in_use,
    blame_ends.stop_was_asked,
    blame_ranks.stop_signal_misrouted,
    blame_ranks.hardware_spoke,
    blame_ranks.host_ran_out_of_memory,
    blame_ranks.storage_failed,
    blame_ranks.rank_failed,
    blame_ends.cluster_ended_it,
    blame_ends.agent_vanished,
    blame_ends.node_is_silent,
    blame_ranks.waited_in_vain,
    blame_ranks.never_met,
    blame_ranks.network_failed,
    blame_ranks.only_consequences,
    blame_ends.nothing_failed,
    blame_ends.nothing_started,
)
"""Tried in this order; the first answer is the verdict."""


MOST_EVIDENCE = 32
"""Of 16,384 ranks' ends so many are kept as evidence, and as many notes."""


def judge(findings: Findings) -> Verdict:
    """The verdict on an attempt that ended: the answer of the first rule that has one."""
    seen = Seen(findings)
    answer = next(filter(None, (rule(seen) for rule in RULES)), None)
    return answer or verdict(
        seen,
        Outcome.UNKNOWN_END,
        "the attempt ended and nothing says how: no rank was seen to fail",
    )


def evidence(findings: Findings) -> tuple[Evidence, ...]:
    """Each rank's failure as lead or consequence, then the notes: what is kept beside a verdict."""
    seen = Seen(findings)
    leads = {end.rank for end, _ in seen.leads}
    ends = tuple(
        Evidence(
            source="exit" if end.error is None else "error_file",
            text=sentences.ended(end),
            role=Role.LEAD if end.rank in leads else Role.CONSEQUENCE,
            node=end.node,
            rank=end.rank,
        )
        for end, _ in seen.failed
    )
    leads_first = sorted(ends, key=lambda one: one.role is not Role.LEAD)
    return (*leads_first[:MOST_EVIDENCE], *findings.notes[:MOST_EVIDENCE])
