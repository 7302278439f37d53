"""What keeps memory that may be asked back."""

from __future__ import annotations

from typing import Protocol


class Droppable(Protocol):
    """Keeps arrays as long as nobody needs their room."""

    def drop(self) -> bool:
        """Gives them up; whether there were any."""
