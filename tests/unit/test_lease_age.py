"""How long a run has had no supervisor, as its nodes see it."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from trainctl.base.cells import CellWriter, create_cell
from trainctl.base.rundir import RunDir
from trainctl.base.terms import mark_of
from trainctl.node.lease_age import LeaseAge


def lease(run: RunDir, term: int) -> CellWriter:
    run.leases.mkdir(parents=True, exist_ok=True)
    run.ousted(term).touch()
    create_cell(run.lease(term), 1024)
    return CellWriter(run.lease(term), term)


def test_a_lease_that_is_not_renewed_ages_and_a_renewal_makes_it_new(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    first = lease(run, 1)
    first.write(b"{}")
    age = LeaseAge(run)
    age.look()
    time.sleep(0.1)
    assert age.look() >= 0.1
    first.write(b"{}")  # the same words, but a renewal
    assert age.look() == 0.0


def test_a_new_term_is_followed_and_the_old_ones_writes_are_nothing(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    first = lease(run, 1)
    first.write(b"{}")
    age = LeaseAge(run)
    age.look()
    lease(run, 2).write(b"{}")
    run.ousted(1).write_bytes(mark_of(1))
    assert age.look() == 0.0
    time.sleep(0.05)
    first.write(b"{}")
    assert age.look() >= 0.05


def test_what_cannot_be_read_does_not_age_but_is_unheard(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    lease(run, 1).write(b"{}")
    age = LeaseAge(run)
    age.look()
    shutil.rmtree(run.leases)
    time.sleep(0.05)
    assert age.look() == 0.0
    assert age.unheard_s() >= 0.05


def test_a_deleted_run_has_no_supervisor(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    lease(run, 1).write(b"{}")
    age = LeaseAge(run)
    age.look()
    shutil.rmtree(run.root)
    age.look()
    time.sleep(0.05)
    assert age.look() >= 0.05
