"""The error for files that hold programs."""

from __future__ import annotations


class ProgramFileError(ValueError):
    """A program file or operation log that cannot be read; the message says where and why.

    Attributes:
      line: the line of the file, from 1.
    """

    def __init__(self, message: str, line: int):
        super().__init__(message)
        self.line = line
