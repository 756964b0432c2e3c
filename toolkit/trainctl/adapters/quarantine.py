"""
The quarantine of a site: one small file per entry, a folder per node, shared by all runs.

    SITE_DIR/quarantine/NODE/<run_id>-a<attempt>-<kind>.json

An entry is written once, under a name of its own, and never rewritten; a node is in quarantine
while an entry of it has no release entry after it. Without a site directory the quarantine is the
run's own.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from trainctl.base.files import Files


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a node was taken out (`kind` "quarantined") or let in again (`kind` "released")."""

    node: str
    kind: str = "quarantined"
    reason: str
    evidence: tuple[str, ...] = ()
    run: str = ""
    run_id: str = ""
    attempt: int = 0
    at_ms: int = 0


class QuarantineDir:
    """The entries under `root`."""

    def __init__(self, root: Path, files: Files) -> None:
        self._root = root
        self._files = files

    def add(self, entry: Entry) -> Path:
        """Write the entry, durably; the same entry (node, kind, run, attempt) is written once."""
        folder = self._root / entry.node
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{entry.run_id or 'site'}-a{entry.attempt:04d}-{entry.kind}.json"
        if not path.exists():
            self._files.replace(path, msgspec.json.encode(entry) + b"\n")
        return path

    def entries(self, node: str) -> tuple[Entry, ...]:
        """
        The node's history, oldest first; a file that cannot be read counts as an entry of unknown
        reason.
        """
        found = []
        for path in sorted((self._root / node).glob("*.json")):
            try:
                found.append(msgspec.json.decode(path.read_bytes(), type=Entry))
            except (OSError, msgspec.DecodeError) as error:
                found.append(Entry(node=node, reason=f"unreadable entry {path.name}: {error}"))
        return tuple(sorted(found, key=lambda entry: entry.at_ms))

    def quarantined(self) -> frozenset[str]:
        """The nodes that are kept out now."""
        if not self._root.is_dir():
            return frozenset()
        histories = {folder.name: self.entries(folder.name) for folder in self._root.iterdir()}
        return frozenset(
            node for node, past in histories.items() if past and past[-1].kind == "quarantined"
        )
