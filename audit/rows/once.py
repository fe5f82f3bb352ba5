"""Which rows were told already? Several views hold the same records, and rows may be as many as these: what
was told waits in files."""

from __future__ import annotations

from audit.findings import Finding
from audit.rows.parts import Folder
from audit.rows.places import Places


class Once:
    """Rows of one kind at one place are told once. Those of one round all stand at different places."""

    def __init__(self, folder: Folder) -> None:
        self._places = Places(folder)
        self._round = 0

    def next_round(self) -> None:
        self._round += 1

    def first(self, f: Finding) -> bool:
        """Was no such row told in the rounds before?"""
        begin, until = f.phys_offset, f.phys_offset + 1
        if any(self._places.overlap(f.kind, str(told), begin, until) for told in range(self._round)):
            return False
        self._places.add(f.kind, str(self._round), begin, until)
        return True
