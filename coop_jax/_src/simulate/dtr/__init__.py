"""Operation logs of DTR's authors, and a simulator that follows their rules."""
