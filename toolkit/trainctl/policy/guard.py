"""When many nodes fail at once the cause is not the nodes: the cap past which a human is asked."""

from __future__ import annotations

from collections import defaultdict

from trainctl.model.events import NodeVerdict, PreflightFinished

_SHARE = 0.2
_FEW = 2


def too_many(bad: int, of: int) -> bool:
    """More than max(2, 20 %) of the nodes, or all of two or more."""
    return bad > max(_FEW, _SHARE * of) or (bad == of and of >= _FEW)


def bad_verdicts(done: PreflightFinished) -> tuple[NodeVerdict, ...]:
    """What condemns a node; `unsure` never does."""
    return tuple(verdict for verdict in done.verdicts if verdict.verdict == "bad")


def common_cause(done: PreflightFinished) -> tuple[NodeVerdict, ...]:
    """The verdicts of the check that too many nodes failed at once; empty when there is none."""
    by_check: dict[str, dict[str, NodeVerdict]] = defaultdict(dict)
    for verdict in bad_verdicts(done):
        by_check[verdict.check][verdict.node] = verdict
    for nodes in by_check.values():
        if too_many(len(nodes), len(done.checked)):
            return tuple(nodes.values())
    return ()
